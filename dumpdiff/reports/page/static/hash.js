"use strict";
/* The view as a link: #finding-2&q=softmax&state=introduced. One part may be an element, all others are settings. */

const view = {
  read() {
    const settings = {};
    let place = "";
    for (const part of location.hash.slice(1).split("&")) {
      const at = part.indexOf("=");
      if (at < 0) place = part;
      else settings[part.slice(0, at)] = decodeText(part.slice(at + 1));
    }
    return { place, settings };
  },

  /* Replaces the address without scrolling; an empty value removes a setting. */
  write(changes, place = view.read().place) {
    const settings = { ...view.read().settings, ...changes };
    const parts = Object.entries(settings).filter(([, value]) => value !== "" && value !== undefined);
    const text = [place, ...parts.map(([name, value]) => `${name}=${encodeURIComponent(value)}`)].filter(Boolean).join("&");
    history.replaceState(null, "", `#${text}`);
  },
};

function decodeText(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a percent sign that encodes nothing
  }
}
