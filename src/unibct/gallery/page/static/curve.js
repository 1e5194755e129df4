// The curve of a backfill as a picture: share of new rows across, share of found queries upwards.
import { element, find, percent, svgElement } from "./dom.js";

const HEIGHT = 260, LEFT = 46, RIGHT = 16, TOP = 14, BOTTOM = 42;

export function showCurve(status, certificates) {
  const drawn = data(status, certificates);
  find("curve").hidden = drawn === null;
  if (drawn === null) return;
  const width = Math.max(280, find("curve-picture").clientWidth || 600);
  find("curve-picture").replaceChildren(picture(drawn, width));
  find("curve-words").replaceChildren(words(drawn));
}

// What there is to draw; null before an upgrade.
function data(status, certificates) {
  if (status.previous === null) return null;
  const certificate = certificates.find(c => c.verdict !== null);
  const top = certificate?.top_1 ?? {};
  const curves = Object.entries(certificate?.curves ?? {});
  const known = status.steps.filter(s => s.action === "backfill" && !s.undone).flatMap(s => s.curve);
  let test = curves.length ? (curves.find(([name]) => name === "random") ?? curves[0])[1] : [];
  const isWhole = test.length > 0;
  if (!isWhole) test = [[0, top["new→old"]], [1, top["new→new"]]].filter(p => p[1] !== undefined);
  const own = status.kinds.filter(k => ["own", "mapped"].includes(k.row)).reduce((a, k) => a + k.share, 0);
  return { known, test, isWhole, baseline: top["old→old"], own, names: status };
}

function picture({ known, test, isWhole, baseline, own }, width) {
  const values = [...known, ...test].map(p => p[1]).concat(baseline ?? []);
  const low = Math.max(0, Math.floor(10 * Math.min(0.9, ...values) - 0.5) / 10);
  const x = share => LEFT + share * (width - LEFT - RIGHT);
  const y = value => TOP + (1 - (value - low) / (1 - low)) * (HEIGHT - TOP - BOTTOM);
  const line = (x1, y1, x2, y2, name) => svgElement("line", { x1, y1, x2, y2, class: name });
  const text = (tx, ty, anchor, words) =>
    svgElement("text", { x: tx, y: ty, "text-anchor": anchor }, words);
  const path = points => points.map(([s, v]) => `${x(s).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
  const parts = [];
  const steps = Math.round((1 - low) * 10);
  for (let i = 0; i <= steps; i += steps > 5 ? 2 : 1) {
    const value = low + i / 10;
    parts.push(line(LEFT, y(value), width - RIGHT, y(value), "grid"),
      text(LEFT - 8, y(value) + 4, "end", percent(value)));
  }
  for (const share of [0, 0.25, 0.5, 0.75, 1])
    parts.push(text(x(share), HEIGHT - BOTTOM + 18, share === 1 ? "end" : share ? "middle" : "start",
      percent(share)));
  parts.push(text(x(0.5), HEIGHT - 6, "middle", "rows made by the new model"));
  parts.push(line(x(own), TOP, x(own), HEIGHT - BOTTOM, "now-line"),
    text(x(own) + (own > 0.8 ? -5 : 5), HEIGHT - BOTTOM - 6, own > 0.8 ? "end" : "start", "now"));
  if (baseline !== undefined)
    parts.push(line(x(0), y(baseline), x(1), y(baseline), "baseline"));
  if (isWhole) parts.push(svgElement("polyline", { points: path(test), class: "test" }));
  else for (const [s, v] of test)
    parts.push(svgElement("circle", { cx: x(s), cy: y(v), r: 5, class: "test-point" }));
  parts.push(svgElement("polyline", { points: path(known), class: "known" }));
  for (const [s, v] of known)
    parts.push(svgElement("circle", { cx: x(s), cy: y(v), r: 3.5, class: "known-point" }));
  return svgElement("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-labelledby": "curve-title curve-words",
  }, ...parts);
}

function words({ known, test, isWhole, baseline, names }) {
  const items = [];
  const item = (name, line) => items.push(element("li", {}, element("span", { class: `key ${name}` }), line));
  if (known.length) {
    const lowest = Math.min(...known.map(p => p[1]));
    item("known", `known queries with a mate among their first rows, in this gallery (lowest check ${percent(lowest)})`);
  }
  if (test.length)
    item("test", `top-1 of ${names.searching.short_name} in the certificate's test: `
      + `${percent(test[0][1], 1)} with old rows, ${percent(test.at(-1)[1], 1)} with new ones`
      + (isWhole ? "" : "; the way between was not measured"));
  if (baseline !== undefined)
    item("baseline", `top-1 of ${names.previous.short_name} with old rows in the same test: ${percent(baseline, 1)}`);
  return element("ul", {}, ...items);
}
