"use strict";
/* The page of one stage of a triage: everything is shown, nothing unfolds. */

startPage(() => ({ show() {}, close() {}, keys: () => ({}) }));
