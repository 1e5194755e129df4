// The buttons: backfill, pause, rollback, and the progress of what they have begun.
import { postJson } from "./api.js";
import { count, element, find, percent, say } from "./dom.js";

let latest = null; // the last status

// Wire the buttons. `changed` is called after each of them.
export function prepareActions(changed) {
  const act = async (path, body) => {
    try {
      await postJson(path, body);
    } catch (error) {
      showMessage(error.message, true);
      return;
    }
    await changed();
  };
  find("backfill").addEventListener("click", () =>
    act("/api/backfill", { share: Number(find("share").value) }));
  find("pause").addEventListener("click", () => act("/api/backfill/pause"));
  const dialog = find("confirm");
  find("rollback").addEventListener("click", () => {
    const { step, action, searching, stopped } = target();
    say("confirm-words", stopped
      ? `The rollback to before step ${step}, ${action}, goes on: the rows that are left are `
        + `embedded by ${searching.short_name}.`
      : `The gallery goes back to before step ${step}, ${action}: `
        + `${searching.short_name} searches then. Rows that were added since are kept.`);
    dialog.showModal();
    find("confirm-no").focus();
  });
  find("confirm-no").addEventListener("click", () => dialog.close());
  find("confirm-yes").addEventListener("click", () => {
    dialog.close();
    act("/api/rollback", { to: target().step });
  });
}

export function showActions(status) {
  latest = status;
  const { job, savings, rollbacks, has_images: hasImages } = status;
  const isRunning = job?.state === "running";
  const isElsewhere = !isRunning && status.unfinished !== null;
  const isLeft = savings.rows > 0;
  setDisabled("backfill", isRunning || !hasImages || !isLeft);
  setDisabled("share", isRunning || !hasImages || !isLeft);
  setDisabled("pause", !(isRunning && job.action === "backfill"));
  for (const id of ["rollback", "target"]) setDisabled(id, isRunning || !rollbacks.length);
  say("backfill", isElsewhere ? "Continue" : "Backfill");
  say("backfill-words", !hasImages ? "Needs the images of the rows: unibct gallery serve … --images DATA."
    : !isLeft ? "No rows of older models are left."
    : isElsewhere ? "A backfill is not complete: it is paused, or runs in another process."
    : "Embed older rows again, while search goes on.");
  offerTargets(rollbacks, isRunning);
  chooseShare(status);
  showJob(job);
}

const target = () => latest.rollbacks.find(back => String(back.step) === find("target").value);

function offerTargets(rollbacks, isRunning) {
  const select = find("target");
  const wanted = rollbacks.map(back => String(back.step));
  const isNew = wanted.join() !== [...select.options].map(option => option.value).join();
  if (isNew)
    select.replaceChildren(...rollbacks.map(back =>
      element("option", { value: back.step }, `${back.step}. ${back.action}`)));
  const stopped = isRunning ? undefined : rollbacks.find(back => back.stopped);
  if (stopped && isNew) select.value = stopped.step;
  say("rollback-words", stopped ? `The rollback to before step ${stopped.step} is not complete: `
      + "it was stopped, or runs in another process. Roll back once more, and it goes on."
    : rollbacks.length ? "Undo a backfill, or let the earlier model search again."
    : "There is no upgrade and no backfill to go back from.");
}

// Offer only shares that are not reached yet.
function chooseShare(status) {
  const own = status.kinds.filter(k => ["own", "mapped"].includes(k.row)).reduce((a, k) => a + k.share, 0);
  const options = [...find("share").options];
  for (const option of options) option.disabled = Number(option.value) <= own && option.value !== "1";
  if (find("share").selectedOptions[0]?.disabled)
    find("share").value = options.find(option => !option.disabled).value;
}

function showJob(job) {
  const bar = find("job-progress");
  bar.hidden = job === null || job.state !== "running";
  if (job === null) return;
  if (job.total) bar.value = job.done / job.total;
  else bar.removeAttribute("value");
  if (job.state !== "running") showMessage(job.message, job.state === "failed");
  else if (job.total === null) showMessage(`The ${job.action} begins …`);
  else showMessage(`The ${job.action}: ${count(job.done)} of ${count(job.total)} rows `
    + `(${percent(job.done / Math.max(1, job.total))})`);
}

function showMessage(text, isFailure = false) {
  say("job-status", text);
  find("job-status").className = isFailure ? "failed" : "";
}

// A disabled button loses the focus: give it to the first one that can be pressed.
function setDisabled(id, isDisabled) {
  const had = document.activeElement === find(id);
  find(id).disabled = isDisabled;
  if (had && isDisabled)
    ["pause", "backfill", "rollback"].map(find).find(button => !button.disabled)?.focus();
}
