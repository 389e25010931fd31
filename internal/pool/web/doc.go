// Package web serves the pool's pages for browsers, next to the manager's API. It
// renders them from the API's answers to the viewer's own credential, so a viewer has
// the same rights in a browser as by calls.
//
// Every page works without JavaScript. With it, a page reads a stream of events
// (server-sent events, from WatchEvents). After an event it fetches itself again and
// updates the elements that differ (assets/app.js).
package web
