package cl

// NewUserEvent makes an event that ends with SetUserEvent.
func (l *Library) NewUserEvent(c Context) (Event, error) {
	e, err := l.create(createUserEvent, uintptr(c))
	return Event(e), err
}

// SetUserEvent ends a user event, so that what waits for it may run. It is called once.
func (l *Library) SetUserEvent(e Event) error {
	return l.call(setUserEventStatus, uintptr(e), eventComplete)
}
