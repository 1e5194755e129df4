// Searching with an image: dropped, pasted, chosen, or one of the image set.
import { getJson, imageAddress, postImage } from "./api.js";
import { className, count, element, find, say } from "./dom.js";

let query = null; // {file} or {id}
let rowTypes = new Map(); // fingerprint -> row type now, which gives a model its colour
let seed = Math.floor(Math.random() * 1e6);
let newest = 0; // answers of earlier searches that come late are dropped

export function prepareSearch() {
  const drop = find("drop");
  find("file").addEventListener("change", event => {
    if (event.target.files.length) searchFile(event.target.files[0]);
    event.target.value = ""; // so that the same file can be chosen again
  });
  for (const name of ["dragover", "dragenter"])
    document.addEventListener(name, event => {
      event.preventDefault();
      drop.classList.add("over");
    });
  document.addEventListener("dragleave", event => {
    if (event.relatedTarget === null) drop.classList.remove("over");
  });
  document.addEventListener("drop", event => {
    event.preventDefault();
    drop.classList.remove("over");
    const file = event.dataTransfer.files[0];
    if (file) searchFile(file);
  });
  document.addEventListener("paste", event => {
    const file = [...event.clipboardData.files].find(f => f.type.startsWith("image/"));
    if (file) searchFile(file);
  });
  for (const id of ["k", "far"]) find(id).addEventListener("change", () => searchAgain());
  find("other-samples")?.addEventListener("click", () => {
    seed += 1;
    showSamples();
  });
  if (find("samples")) showSamples();
}

// Take note of which rows can be searched how, for colours and for the choice of rates.
export function noteStatus(status) {
  rowTypes = new Map(status.kinds.map(kind => [kind.model.fingerprint, kind.row]));
  const select = find("far");
  const wanted = ["", ...status.fars.map(String)];
  find("far-option").hidden = !status.fars.length;
  if (wanted.join() === [...select.options].map(option => option.value).join()) return;
  const chosen = select.value;
  select.replaceChildren(...wanted.map(far => element(
    "option", { value: far }, far ? `1 false in ${count(Math.round(1 / far))}` : "all scores",
  )));
  if (wanted.includes(chosen)) select.value = chosen;
}

async function showSamples() {
  const { samples } = await getJson(`/api/samples?count=12&seed=${seed}`);
  find("samples").replaceChildren(...samples.map(sample => {
    const words = `Search with ${sample.label ?? sample.id}`;
    const picture = element("img", { src: imageAddress(sample.id), alt: words, width: 40, height: 40 });
    const button = element("button", { type: "button", class: "sample", title: sample.id }, picture);
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      for (const other of find("samples").children) other.setAttribute("aria-pressed", other === button);
      searchId(sample.id, sample.label);
    });
    return button;
  }));
}

function searchFile(file) {
  for (const button of find("samples")?.children ?? []) button.setAttribute("aria-pressed", "false");
  const picture = find("query-picture");
  if (picture.src.startsWith("blob:")) URL.revokeObjectURL(picture.src);
  showQuery(URL.createObjectURL(file), file.name || "pasted image");
  query = { file };
  searchAgain();
}

function searchId(id, label) {
  showQuery(imageAddress(id), label ? `${label} (${id})` : id);
  query = { id };
  searchAgain();
}

function showQuery(address, name) {
  const picture = find("query-picture");
  picture.src = address;
  picture.alt = `The query: ${name}`;
  picture.hidden = false;
  find("query-name").replaceChildren(element("b", {}, "Query: "), name);
}

// Search once more with the same image; quietly if nobody asked for it.
export async function searchAgain(quietly = false) {
  if (query === null) return;
  const number = ++newest;
  if (!quietly) say("search-status", "Searching …");
  const parameters = new URLSearchParams({ k: find("k").value });
  if (find("far").value) parameters.set("far", find("far").value);
  if (query.id !== undefined) parameters.set("image_id", query.id);
  try {
    const answer = await postImage(`/api/search?${parameters}`, query.file ?? null);
    if (number !== newest) return;
    showAnswer(answer);
    if (!quietly) say("search-status", summary(answer));
  } catch (error) {
    if (number !== newest) return;
    find("columns").replaceChildren();
    say("search-status", `No results: ${error.message}`);
  }
}

function summary(answer) {
  const parts = answer.columns.map(column => `${column.hits.length} by ${column.model.short_name}`);
  return `Found ${parts.join(", ")}.`;
}

function showAnswer(answer) {
  const before = answer.columns.find(column => column.role === "before");
  const places = before && new Map(before.hits.map((hit, place) => [hit.id, place + 1]));
  find("columns").className = answer.columns.length > 1 ? "columns two" : "columns";
  find("columns").replaceChildren(...answer.columns.map(column => {
    const title = element("h3", { id: `column-${column.role}`, title: column.model.name },
      `${column.role === "now" ? "Now" : "Before"}: ${column.model.short_name}`);
    const hits = column.hits.map((hit, place) =>
      shownHit(hit, place + 1, answer, column.role === "now" ? places : undefined));
    return element("div", { class: `column ${column.role}`, role: "region", "aria-labelledby": title.id },
      element("div", { class: "column-head" }, title,
        element("span", { class: "soft" }, `${column.model.fingerprint.slice(0, 8)}`)),
      column.problem ? element("p", { class: "soft" }, column.problem) : null,
      hits.length ? element("ol", { class: "hits" }, ...hits)
        : element("p", { class: "soft" }, "Nothing found."));
  }));
}

function shownHit(hit, place, answer, places) {
  const isRight = answer.query_label !== null && hit.label === answer.query_label;
  const name = element("div", { class: "hit-name" },
    hit.label ?? hit.id,
    isRight ? element("span", { class: "tick", title: "the query's label" }, " ✓") : null,
    hit.label ? element("small", {}, hit.id) : null);
  const rowType = rowTypes.get(hit.model.fingerprint) ?? hit.row;
  const about = element("div", { class: "hit-about" },
    element("span", { title: hit.model.name },
      element("span", { class: `dot ${className(rowType)}` }), `${hit.row} row, ${hit.model.short_name}`),
    moved(hit, place, answer, places));
  const score = element("div", { class: "hit-score", title: `cosine ${hit.similarity.toFixed(4)}` },
    hit.score.toFixed(3));
  const picture = hit.has_image
    ? element("img", { src: imageAddress(hit.id), alt: "", width: 52, height: 52, loading: "lazy" })
    : null;
  const kind = `hit${picture ? "" : " no-picture"}${isRight ? " right" : ""}`;
  return element("li", { class: kind }, picture, name, score, about);
}

function moved(hit, place, answer, places) {
  if (hit.id === answer.query_id) return element("span", {}, "the query itself");
  if (places === undefined) return null;
  const was = places.get(hit.id);
  if (was === undefined) return element("span", {}, "not found before");
  return was === place ? null : element("span", {}, `${was > place ? "↑" : "↓"} from ${was}`);
}
