// Updates the page of a study while it is open: totals, status and result. Without this script the page stays as it was loaded.
"use strict";

(() => {
  for (const place of document.querySelectorAll("[data-origin]")) place.textContent = location.origin;

  const panel = document.querySelector("[data-events]");
  if (!panel || !window.EventSource) return;

  const field = (name) => document.querySelectorAll(`[data-field="${name}"]`);
  const write = (name, text) => field(name).forEach((place) => { if (place.textContent !== text) place.textContent = text; });
  const inWords = (n) => n.toLocaleString("en-GB");
  const bar = panel.querySelector("progress");
  const labels = [...panel.querySelectorAll(".figures dt")].map((term) => term.textContent);
  const setStopped = (isStopped) => field("stopped").forEach((place) => { place.hidden = !isStopped; });
  let said = "", source = null, hasEnded = false;

  function show(totals) {
    const refused = Object.values(totals.refused).reduce((sum, n) => sum + n, 0);
    const figures = [totals.enrolled, totals.accepted, refused].map(inWords);
    ["enrolled", "accepted", "refused"].forEach((name, i) => write(name, figures[i]));
    if (bar) bar.value = Math.min(bar.max, totals[bar.dataset.total]);
    const sentence = labels.map((label, i) => `${figures[i]} ${label}`).join(", ") + ".";
    if (totals.status !== "open") {
      end(totals);
    } else if (said && sentence !== said) {
      write("said", sentence);
    }
    said = sentence;
  }

  function end(totals) {
    hasEnded = true;
    leave();
    for (const pill of field("status")) {
      pill.className = `pill pill-${totals.status}`;
      pill.textContent = totals.status;
    }
    for (const place of field("standing")) place.textContent = place.dataset[totals.status];
    for (const place of field("reason")) {
      place.textContent = totals.reason || "";
      place.hidden = !totals.reason;
    }
    for (const place of document.querySelectorAll("[data-when]")) place.hidden = place.dataset.when !== totals.status;
    write("said", "The study has ended.");
  }

  function leave() {
    if (source) source.close();
    source = null;
  }

  // A browser opens six connections to one origin, and a seventh page would wait for ever: hidden pages do not follow.
  function follow() {
    if (document.hidden || hasEnded) return leave();
    if (source) return;
    setStopped(false);
    source = new EventSource(panel.dataset.events);
    source.addEventListener("progress", (event) => show(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      // The browser retries a connection that was lost, but not one that was rejected.
      if (!source || source.readyState !== EventSource.CLOSED) return;
      leave();
      setStopped(true);
    });
  }

  document.addEventListener("visibilitychange", follow);
  window.addEventListener("pagehide", leave);
  window.addEventListener("pageshow", follow);
  follow();
})();
