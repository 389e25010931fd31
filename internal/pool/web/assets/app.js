"use strict";
// Keeps pages up to date, moves through the map by arrow keys, and switches the
// theme without a reload. Every page works without this file.
(() => {
  const body = document.body;
  const status = document.getElementById("status");
  const log = document.getElementById("log");

  function show(state, text) {
    if (!status || status.dataset.state === state) return;
    status.dataset.state = state;
    status.querySelector(".text").textContent = text;
  }

  // morph changes a tree of elements into another one. Siblings are matched by data-key,
  // otherwise by position. Attributes in kept belong to the reader: open details, typed
  // values, focus.
  const kept = { DETAILS: ["open"], A: ["tabindex"], INPUT: ["value", "checked"], OPTION: ["selected"] };

  function attributes(from, to) {
    const stay = kept[from.nodeName] || [];
    for (const a of [...from.attributes]) {
      if (!to.hasAttribute(a.name) && !stay.includes(a.name)) from.removeAttribute(a.name);
    }
    for (const a of to.attributes) {
      if (from.getAttribute(a.name) !== a.value && !stay.includes(a.name)) from.setAttribute(a.name, a.value);
    }
  }

  const keyOf = (n) => (n.nodeType === 1 && n.dataset ? n.dataset.key : undefined);

  function morph(from, to) {
    if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName || keyOf(from) !== keyOf(to)) {
      from.replaceWith(to);
      return;
    }
    if (from.nodeType !== 1) {
      if (from.data !== to.data) from.data = to.data;
      return;
    }
    if (from.isEqualNode(to)) return;
    attributes(from, to);
    children(from, to);
  }

  function children(from, to) {
    const keyed = new Map();
    for (const c of from.childNodes) if (keyOf(c) !== undefined) keyed.set(keyOf(c), c);
    let at = from.firstChild;
    for (const want of [...to.childNodes]) {
      const k = keyOf(want);
      const have = k === undefined ? undefined : keyed.get(k);
      if (have) {
        keyed.delete(k);
        if (have === at) at = at.nextSibling;
        else from.insertBefore(have, at);
        morph(have, want);
      } else if (k === undefined && at && keyOf(at) === undefined) {
        const next = at.nextSibling;
        morph(at, want);
        at = next;
      } else {
        from.insertBefore(want, at);
      }
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
    for (const c of keyed.values()) c.remove();
  }

  // localise shows times in the reader's time zone.
  function localise(root) {
    for (const t of root.querySelectorAll("time[datetime]")) {
      const at = new Date(t.dateTime);
      if (isNaN(at)) continue;
      const day = Math.abs(Date.now() - at) > 20 * 3600e3;
      const two = (n) => String(n).padStart(2, "0");
      const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} `;
      const clock = `${two(at.getHours())}:${two(at.getMinutes())}`;
      const text = day ? date + clock : `${clock}:${two(at.getSeconds())}`;
      if (t.textContent !== text) t.textContent = text;
    }
  }

  // A page is fetched again shortly after a change, and every data-poll seconds.
  let fetching = false, wanted = false, lastTook = 0, lastBegin = -1000, timer = 0;

  function refreshSoon() {
    if (log) return; // the stream brings the rows of the page of events
    wanted = true;
    if (!fetching && !timer) timer = setTimeout(refresh, Math.max(30, Math.min(5000, 3 * lastTook), lastBegin + 1000 - performance.now()));
  }

  async function refresh() {
    timer = 0;
    if (document.hidden) return;
    fetching = true;
    wanted = false;
    lastBegin = performance.now();
    try {
      // Without a revision, only a new rendering will do.
      const res = await fetch(location.href, { headers: { "Dxpu-After": revision ? String(revision) : "" } });
      if (res.redirected && new URL(res.url).pathname === "/ui/signin") {
        location.assign(res.url);
        return;
      }
      if (res.status === 429 || res.status === 503) { // keep the page
        show("broken", "busy");
        return;
      }
      const fresh = new DOMParser().parseFromString(await res.text(), "text/html");
      const content = fresh.getElementById("content");
      if (content) {
        localise(content);
        morph(document.getElementById("content"), content);
        setTabStops();
      }
    } catch {
      show("broken", "no answer");
    } finally {
      lastTook = performance.now() - lastBegin;
      fetching = false;
      if (wanted) refreshSoon();
    }
  }

  // Only visible pages have a stream: browsers limit the connections to a server.
  let source = null, revision = Number(body.dataset.revision) || 0, again = 0;

  function listen() {
    if (source || document.hidden || !("live" in body.dataset)) return;
    const q = new URLSearchParams(log ? location.search : "");
    q.set("after", String(revision));
    if (log) q.set("rows", "1");
    source = new EventSource("/ui/stream?" + q);
    source.onopen = () => {
      show("live", "live");
      refreshSoon();
    };
    source.onerror = () => {
      show("broken", "connecting…");
      if (source.readyState !== EventSource.CLOSED) return; // the browser reconnects
      closeStream();
      clearTimeout(again);
      again = setTimeout(listen, 5000);
    };
    const seen = (e) => {
      revision = Number(e.lastEventId) || revision;
      show("live", "live");
    };
    source.addEventListener("alive", seen);
    source.addEventListener("change", (e) => {
      seen(e);
      if (log) addRow(JSON.parse(e.data).row);
      else refreshSoon();
    });
    source.addEventListener("reset", () => {
      closeStream();
      revision = 0;
      if (log) location.reload();
      else listen();
    });
  }

  function closeStream() {
    if (source) source.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      closeStream();
      return;
    }
    refreshSoon();
    listen();
  });

  // The page of events puts new rows on top, or holds them while it is paused.
  const maxRows = 500, maxWaiting = 1000;
  let paused = false, waiting = [];

  function addRow(html) {
    if (paused) {
      waiting.push(html);
      if (waiting.length > maxWaiting) waiting.shift();
      document.getElementById("waiting").textContent = `Paused. ${waiting.length} new.`;
      return;
    }
    const rows = log.tBodies[0];
    const t = document.createElement("template");
    t.innerHTML = html;
    localise(t.content);
    const row = t.content.firstElementChild;
    if (!row || [...rows.rows].slice(0, 50).some((r) => r.dataset.key === row.dataset.key)) return;
    rows.prepend(row);
    while (rows.rows.length > maxRows) rows.rows[rows.rows.length - 1].remove();
  }

  const pause = document.getElementById("pause");
  if (pause && log) {
    pause.hidden = false;
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.setAttribute("aria-pressed", String(paused));
      pause.textContent = paused ? "Resume" : "Pause";
      document.getElementById("waiting").textContent = paused ? "Paused." : "";
      if (paused) return;
      waiting.splice(0).forEach(addRow);
    });
  }

  // Each rack of the map is one tab stop ("roving tabindex"); arrow keys move within
  // a rack and between racks.
  function setTabStops() {
    for (const grid of document.querySelectorAll("[data-grid]")) {
      const links = [...grid.querySelectorAll("a")];
      const stop = links.find((a) => a === document.activeElement) || links.find((a) => a.tabIndex === 0 && a.hasAttribute("tabindex")) ||
        grid.querySelector("a.slot") || links[0];
      for (const a of links) a.tabIndex = a === stop ? 0 : -1;
    }
  }

  function neighbour(here, key) {
    const links = [...document.querySelectorAll("[data-grid] a")];
    const i = links.indexOf(here);
    if (key === "ArrowRight") return links[i + 1];
    if (key === "ArrowLeft") return links[i - 1];
    const row = [...here.closest("[role=row]").querySelectorAll("a")];
    if (key === "Home") return row[0];
    if (key === "End") return row[row.length - 1];
    const r = here.getBoundingClientRect();
    const x = r.left + r.width / 2, y = r.top + r.height / 2;
    let best, least = Infinity;
    for (const a of links) {
      const b = a.getBoundingClientRect();
      const dy = (b.top + b.height / 2 - y) * (key === "ArrowDown" ? 1 : -1);
      const dx = Math.abs(Math.max(b.left, Math.min(x, b.right)) - x);
      if (dy > 4 && dy + 3 * dx < least) {
        least = dy + 3 * dx;
        best = a;
      }
    }
    return best;
  }

  document.addEventListener("keydown", (e) => {
    const here = e.target.closest && e.target.closest("[data-grid] a");
    if (!here || e.altKey || e.ctrlKey || e.metaKey || e.shiftKey) return;
    if (!["ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "Home", "End"].includes(e.key)) return;
    e.preventDefault();
    const next = neighbour(here, e.key);
    if (!next) return;
    next.focus();
    setTabStops();
  });

  // Keys: "/" to the search, "?" for the list of keys, "g" and a letter to a page.
  const pages = { p: "/", l: "/ui/leases", h: "/ui/hosts", u: "/ui/gpus", t: "/ui/tenants", e: "/ui/events" };
  let going = 0;

  document.addEventListener("keydown", (e) => {
    const keys = document.getElementById("keys");
    const typing = e.target.closest && e.target.closest("input, select, textarea");
    if (typing || e.altKey || e.ctrlKey || e.metaKey || e.defaultPrevented) return;
    const search = document.getElementById("search");
    if (e.key === "/" && search) {
      e.preventDefault();
      search.focus();
    } else if (e.key === "?" && keys) {
      if (keys.open) keys.close();
      else keys.showModal();
    } else if (e.key === "g") {
      going = performance.now();
      return;
    } else if (pages[e.key] && going && performance.now() - going < 2000) {
      location.assign(pages[e.key]);
    }
    going = 0;
  });

  // A form that changes the pool is sent once per click, also while the answer takes long.
  // The manager recognises a form that arrives twice; without this its second answer is
  // the one that the reader sees, a moment later.
  const sent = new WeakMap();
  document.addEventListener("submit", (e) => {
    if (!e.target.matches('form[action="/ui/do"]')) return;
    if (performance.now() - (sent.get(e.target) ?? -Infinity) < 10000) e.preventDefault();
    else sent.set(e.target, performance.now());
  });

  // A page from the browser's cache of whole pages has forms that were sent, and is old.
  window.addEventListener("pageshow", (e) => { if (e.persisted) location.reload(); });

  // The theme button goes through auto, light and dark.
  const theme = document.getElementById("theme");
  if (theme) {
    theme.addEventListener("submit", (e) => {
      e.preventDefault();
      const button = theme.querySelector("button");
      const now = button.value, next = { auto: "light", light: "dark", dark: "auto" };
      if (now === "auto") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = now;
      document.cookie = `dxpu_theme=${now === "auto" ? "" : now}; Path=/; SameSite=Strict; Max-Age=${now === "auto" ? 0 : 31536000}`;
      button.textContent = "Theme: " + now;
      button.value = next[now];
    });
  }

  const zone = document.getElementById("zone");
  if (zone) zone.textContent = `Times are in ${Intl.DateTimeFormat().resolvedOptions().timeZone || "local time"}.`;
  localise(document);
  setTabStops();
  listen();
  const poll = Number(body.dataset.poll);
  if (poll > 0) setInterval(() => { if (!fetching) refreshSoon(); }, poll * 1000);
})();
