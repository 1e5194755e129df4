// The page: shows the status, keeps it fresh, and passes it on to its parts.
import { getJson } from "./api.js";
import { showActions, prepareActions } from "./actions.js";
import { showCurve } from "./curve.js";
import { find, say } from "./dom.js";
import { noteStatus, prepareSearch, searchAgain } from "./search.js";
import { showCertificates, showStory } from "./story.js";

const OFTEN = 700, SELDOM = 5000; // milliseconds between two looks
let status = null;
let certificates = [];
let timer = null;
let width = 0; // of the curve

async function refresh() {
  clearTimeout(timer);
  try {
    const before = status;
    status = await getJson("/api/status");
    if (before === null || key(before) !== key(status)) {
      certificates = (await getJson("/api/certificate")).certificates;
      showCertificates(certificates);
    }
    noteStatus(status);
    showStory(status);
    showActions(status);
    showCurve(status, certificates);
    find("alert").hidden = true;
    if (before !== null && rows(before) !== rows(status)) searchAgain(true);
  } catch (error) {
    say("alert", error.message);
    find("alert").hidden = false;
  }
  timer = setTimeout(refresh, status?.job?.state === "running" ? OFTEN : SELDOM);
}

// What certificates depend on, and what the results of a search depend on.
const key = s => `${s.searching.fingerprint} ${s.kinds.length} ${s.steps.length}`;
const rows = s => JSON.stringify([s.searching, s.kinds]);

if (location.search.includes("token=")) history.replaceState(null, "", location.pathname + location.hash);
prepareSearch();
prepareActions(refresh);
new ResizeObserver(() => {
  const isOther = width !== find("curve").clientWidth;
  width = find("curve").clientWidth;
  if (isOther && status !== null) showCurve(status, certificates);
}).observe(find("curve"));
document.addEventListener("visibilitychange", () => document.hidden ? clearTimeout(timer) : refresh());
refresh();
