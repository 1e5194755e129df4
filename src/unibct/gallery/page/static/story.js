// The upgrade as a story: rows, savings, certificate, history.
import { className, count, duration, element, find, percent, points, say } from "./dom.js";

const MEANINGS = {
  own: "own rows", older: "older rows, searched as they are", mapped: "rows made by a map",
  "not searched": "rows that cannot be searched",
};

// After a rollback, vectors of a newer model may be those that were replaced.
const REPLACED = { "not searched": "replaced vectors kept" };

export function showStory(status) {
  say("summary", `${count(status.rows)} rows, searched by ${status.searching.short_name}`
    + (status.previous ? `, which took over from ${status.previous.short_name}.` : "."));
  find("forced").hidden = !status.forced.length;
  say("forced", `Rows of ${status.forced.join(", ")} are searched without a certificate that allows `
    + "it, because somebody insisted (--force).");
  find("doubtful").hidden = !status.doubtful.length;
  say("doubtful", `Rows of ${status.doubtful.join(", ")} are searched by a certificate whose test `
    + "classes are not known to have been new to the models: it may promise too much.");
  showRows(status);
  showSavings(status);
  find("step-list").replaceChildren(...status.steps.map(shownStep).reverse());
}

function showRows(status) {
  const kinds = status.kinds.filter(kind => kind.rows > 0 || kind.row === "own");
  find("rows-bar").setAttribute("aria-label", kinds.map(kind =>
    `${percent(kind.share)} made by ${kind.model.short_name}`).join(", "));
  const bar = find("rows-bar");
  const shown = kinds.filter(kind => kind.rows > 0);
  if (bar.children.length !== shown.length)
    bar.replaceChildren(...shown.map(() => element("span", { class: "part" })));
  shown.forEach((kind, place) => {
    bar.children[place].className = `part ${className(kind.row)}`;
    bar.children[place].style.flexGrow = kind.rows;
  });
  find("rows-legend").replaceChildren(...kinds.map(kind => element("li", { title: kind.model.name },
    element("span", { class: `dot ${className(kind.row)}` }),
    element("b", {}, `${count(kind.rows)} (${percent(kind.share)})`),
    ` by ${kind.model.short_name} `,
    element("small", {}, MEANINGS[kind.row] ?? kind.row,
      kind.replaced ? `; ${count(kind.replaced)} ${REPLACED[kind.row] ?? "old vectors kept for the way back"}`
        : ""))));
}

function showSavings({ savings, previous }) {
  if (!savings.rows) {
    say("saved", previous ? "All rows are new" : "No upgrade yet");
    say("saved-words", previous ? "No row of an older model is left to embed again."
      : "After an upgrade: how many rows need not be embedded again.");
    return;
  }
  say("saved", `${count(savings.rows)} rows`);
  say("saved-words", "need not be embedded again" + (savings.seconds === null ? "."
    : `: ${duration(savings.seconds)} of work here, at ${count(Math.round(savings.images_per_second))}`
      + " images a second."));
}

const readable = date => new Date(date).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });

function shownStep(step) {
  const mark = step.undone ? " (undone)" : step.done ? "" : " (not complete)";
  const date = element("time", { datetime: step.date }, readable(step.date));
  return element("li", { class: `${step.action}${step.undone ? " undone" : ""}` },
    element("b", {}, `${step.number}. ${step.action}`), mark, " ", date, element("p", {}, step.text));
}

export function showCertificates(certificates) {
  find("certificate").hidden = !certificates.length;
  find("certificates").replaceChildren(...certificates.map(shownCertificate));
}

function shownCertificate(paper) {
  const verdict = paper.verdict ?? "no certificate";
  const title = element("p", {},
    element("span", { class: `badge ${className(paper.verdict ?? "none")}` }, verdict),
    ` for rows of ${paper.rows_of.short_name}`);
  if (paper.verdict === null)
    return element("div", { class: "certificate" }, title, element("p", {}, paper.summary));
  const day = new Date(paper.date).toLocaleDateString("en", { dateStyle: "medium" });
  if (paper.template_verdict !== paper.verdict) title.append(` (templates: ${paper.template_verdict})`);
  return element("div", { class: "certificate" }, title,
    element("p", { class: paper.basis === "unseen" ? "soft" : "notice" },
      `Evaluated on ${paper.tested_on}, ${day}.`),
    element("p", { class: "soft" }, `In a gallery with rows of both models, scores of older rows are ${CALIBRATIONS[paper.calibration] ?? paper.calibration}.`),
    element("div", { class: "tables" }, metricsTable(paper), thresholdsTable(paper)),
    element("p", { class: "soft digest" }, "Digest ", element("code", {}, paper.digest)));
}

const CALIBRATIONS = {
  raw: "taken as they are (raw), which ranked best on half of the test classes",
  standardised: "standardised, which ranked best on half of the test classes",
  odds: "put on the scale of new ones by equal odds of a mate, which ranked best on half of the test classes",
  fitted: "put on the scale of new ones by a fitted line, which ranked best on half of the test classes",
};

function table(caption, heads, rows) {
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    element("table", {}, element("caption", {}, caption),
      element("thead", {}, element("tr", {}, ...heads.map(h => element("th", { scope: "col" }, h)))),
      element("tbody", {}, ...rows)));
}

function metricsTable(paper) {
  const rows = paper.criteria.map(entry => element("tr", {},
    element("th", { scope: "row" }, entry.metric,
      entry.decides ? null : element("span", { class: "soft" }, " for information")),
    element("td", {}, percent(entry.old_self, 1)),
    element("td", {}, percent(entry.cross, 1)),
    element("td", { class: className(entry.verdict), title: entry.verdict },
      points(entry.difference), " ",
      element("small", {}, `(${points(entry.low)} to ${points(entry.high)})`))));
  const confidence = paper.criteria[0]?.confidence ?? 0.95;
  return table(`Old and new queries in the old rows, with the ${percent(confidence)} interval in points`,
    ["metric", "old", "new", "difference"], rows);
}

function thresholdsTable(paper) {
  const directions = ["old→old", "new→old", "new→new"].filter(d => d in paper.thresholds);
  const rates = [...new Set(directions.flatMap(d => Object.keys(paper.thresholds[d])))];
  const measured = paper.document.carried_fars ?? rates;
  const rows = rates.map(rate => element("tr", {},
    element("th", { scope: "row" }, `1 in ${count(Math.round(1 / Number(rate)))}`,
      measured.includes(rate) ? null : element("span", { class: "soft" }, " rough")),
    ...directions.map(d => element("td", {}, paper.thresholds[d][rate]?.toFixed(3) ?? "—"))));
  return table("Thresholds by false accepts and direction", ["false accepts", ...directions], rows);
}
