// One sentence in this time is what a person can listen to.
const SAY_MS = 5000;

/** @param {{model: Model, el: HTMLElement}} context */
function render({ model, el }) {
  const root = make("div", "nbt-root nbt-curve nbt-chart");
  const bar = make("div", "nbt-curve-bar");
  const line = make("div", "nbt-curve-line");
  const track = make("div", "nbt-curve-track", "", {
    role: "progressbar", "aria-label": "progress of the sweep", "aria-valuemin": "0", "aria-valuemax": "100",
  });
  const done = make("div", "nbt-curve-done");
  const button = makeButton("Stop", () => {
    button.disabled = true;
    write(button, "Stopping");
    send(model, { kind: "stop" });
  }, "", "nbt-curve-stop");
  const said = make("div", "nbt-hidden-text", "", { role: "status", "aria-live": "polite" });
  const finding = make("p", "nbt-curve-finding nbt-finding");
  const picture = make("div", "nbt-curve-picture");
  track.append(done);
  const left = make("div", "nbt-curve-left");
  left.append(line, track);
  bar.append(left, button);
  root.append(bar, finding, picture, said);
  el.append(root);

  let spoken = -Infinity;
  const { look } = enliven(root);

  /** @param {Spec | undefined} scene */
  const build_all = (scene) => {
    const focused = /** @type {HTMLElement | null} */ (document.activeElement?.closest(".nbt-point"))?.dataset.point;
    picture.replaceChildren(...(scene ? [build(scene)] : []));
    look();
    if (focused !== undefined) {
      /** @type {SVGElement | null} */ (picture.querySelector(`[data-point="${CSS.escape(focused)}"]`))?.focus();
    }
  };

  const draw = () => {
    // A picture begins with its finding; before there is one it is a sentence.
    finding.hidden = model.get("scenes").length > 0;
    write(finding, model.get("finding"));
    const running = model.get("running");
    const stopping = model.get("stopping");
    const fraction = model.get("fraction");
    write(line, model.get("progress") || (running ? "starting" : "done"));
    track.classList.toggle("nbt-unknown", running && fraction < 0);
    const percent = Math.round(Math.max(0, running ? fraction : 1) * 100);
    done.style.width = `${percent}%`;
    if (fraction < 0 && running) track.removeAttribute("aria-valuenow");
    else track.setAttribute("aria-valuenow", String(percent));
    button.hidden = !running;
    button.disabled = stopping;
    write(button, stopping ? "Stopping" : "Stop");
    const now = performance.now();
    if (now - spoken >= SAY_MS && model.get("finding")) {
      spoken = now;
      write(said, model.get("finding"));
    }
  };

  return followScenes(model, ["finding", "progress", "fraction", "running", "stopping"], root, build_all, draw);
}

export default widget(render);
