// Package web is the pool in a browser: pages that the manager serves beside its
// API. They are rendered here from what the API answers to the caller's own
// credential, so that nobody sees or does more in a browser than by calling.
//
// Every page is whole without JavaScript. With it, a page listens to one stream
// of events (server-sent events over WatchEvents), and when something happened
// it fetches itself again and takes over what differs (assets/app.js).
package web
