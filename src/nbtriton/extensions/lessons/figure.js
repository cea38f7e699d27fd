/** @typedef {[Spec, number[][][], [number, number, number, number]]} Staged a scene, the places of its
 *   tokens, and left, width, top and bottom of its time axis */
/** @typedef {{stage: Staged, tokens: SVGElement[], reasons: SVGElement[], cover: SVGElement,
 *   line: SVGElement}} Drawn */

// How long a moment is shown while it plays, by the time until the next one.
const SHORTEST_S = 0.9;
const LONGEST_S = 2.4;
const WHOLE_S = 9;

/** Milliseconds as the sentences have them: three digits, and no zeros at the end. @param {number} value */
function ms_text(value) {
  return `${Number(value.toPrecision(3))} ms`;
}

/** @param {{model: Model, el: HTMLElement}} context */
function render({ model, el }) {
  const root = make("div", "nbt-root nbt-figure");
  const title = make("div", "nbt-figure-title");
  const finding = make("p", "nbt-figure-finding");
  const bar = make("div", "nbt-figure-bar");
  const picture = make("div", "nbt-figure-picture");
  const words = make("p", "nbt-figure-words");
  const form = /** @type {HTMLFormElement} */ (make("form", "nbt-figure-form"));
  const predict = /** @type {HTMLFormElement} */ (make("form", "nbt-figure-predict"));
  const question = make("div", "nbt-figure-question");
  const mark = make("div", "nbt-figure-mark");
  const problem = make("p", "nbt-figure-problem");
  bar.setAttribute("role", "toolbar");
  bar.setAttribute("aria-label", "play and step");
  words.setAttribute("aria-live", "polite");
  mark.setAttribute("role", "status");
  problem.setAttribute("role", "alert");
  form.setAttribute("aria-label", "change the figure");
  root.append(title, finding, question, predict, mark, bar, picture, words, form, problem);
  el.append(root);

  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  /** @type {Drawn | null} */
  let drawn = null;
  let shown = -1;
  /** @type {unknown} */
  let stages = null;
  let fields = "";
  /** The moment that is shown; at the last one all has happened. */
  let at = 0;
  let playing = 0; // the animation frame that is asked for
  let begun = 0;

  /** @param {string} text @param {string} label @param {() => void} act @param {HTMLElement} [place] */
  const button = (text, label, act, place = bar) => {
    const made = makeButton(text, act, label);
    place.append(made);
    return made;
  };

  const moments = () => /** @type {[number, string][]} */ (model.get("moments"));
  const last = () => moments().length - 1;

  // -- one moment --------------------------------------------------------------------------------

  /** Show a moment, and what has happened until a time between it and the next one.
   * @param {number} k @param {number} [now_ms] */
  const show = (k, now_ms) => {
    const all = moments();
    at = Math.max(0, Math.min(k, last()));
    if (!drawn) return;
    const [, places, [left, width]] = drawn.stage;
    drawn.tokens.forEach((token, i) => {
      const stops = places[i] ?? [];
      let stop = -1;
      while (stop + 1 < stops.length && stops[stop + 1][0] <= at) stop += 1;
      const [, x, y, state] = stop >= 0 ? stops[stop] : [0, (stops[0]?.[1] ?? 0) - 30, stops[0]?.[2] ?? 0, 0];
      token.style.transform = `translate(${x}px, ${y}px)`;
      token.classList.toggle("nbt-waits", state === 1);
      token.classList.toggle("nbt-runs", state === 2);
    });
    for (const reason of drawn.reasons) {
      const on = Number(reason.dataset.from) <= at && at < Number(reason.dataset.until);
      reason.classList.toggle("nbt-on", on);
    }
    const ended = at === last() && now_ms === undefined;
    const ms = ended ? model.get("span_ms") : now_ms ?? all[at]?.[0] ?? model.get("span_ms");
    const x = left + (ms / (model.get("span_ms") || 1)) * width;
    drawn.cover.setAttribute("x", String(x));
    drawn.cover.setAttribute("width", String(Math.max(0, left + width - x + 2)));
    drawn.line.setAttribute("transform", `translate(${x} 0)`);
    drawn.line.style.visibility = all.length ? "" : "hidden";
    slider.value = String(at);
    const [when, what] = all[at] ?? [0, ""];
    slider.setAttribute("aria-valuetext", `${ms_text(when)}: ${what}`);
    write(clock_, all.length ? `${at + 1} of ${all.length}: ${ms_text(when)}` : "");
    write(words, what);
    back.disabled = first.disabled = at <= 0;
    forth.disabled = at >= last();
  };

  // -- playing -----------------------------------------------------------------------------------

  /** The seconds after which each moment is shown, and the end. */
  const plan = () => {
    const all = moments();
    const scale = WHOLE_S / (model.get("span_ms") || 1);
    let sum = 0;
    const starts = all.map(([when], k) => {
      if (k) sum += Math.min(LONGEST_S, Math.max(SHORTEST_S, (when - all[k - 1][0]) * scale));
      return sum;
    });
    return [...starts, sum + SHORTEST_S];
  };
  const stop = () => {
    if (playing) cancelAnimationFrame(playing);
    playing = 0;
    write(play, "Play");
    play.setAttribute("aria-label", "play");
    play.title = "play";
  };
  /** @param {number} now */
  const tick = (now) => {
    const all = moments();
    const starts = plan();
    const passed = (now - begun) / 1000;
    let k = 0;
    while (k < last() && starts[k + 1] <= passed) k += 1;
    if (passed >= starts[last() + 1] || !root.isConnected) {
      stop();
      show(last());
      return;
    }
    const share = k < last() ? (passed - starts[k]) / (starts[k + 1] - starts[k]) : 1;
    const next_ms = k < last() ? all[k + 1][0] : all[k][0];
    show(k, all[k][0] + (next_ms - all[k][0]) * Math.min(1, share));
    playing = requestAnimationFrame(tick);
  };
  const start = () => {
    if (playing || calm.matches || last() < 1) return;
    if (at >= last()) show(0);
    begun = performance.now() - plan()[at] * 1000;
    write(play, "Pause");
    play.setAttribute("aria-label", "pause");
    play.title = "pause";
    playing = requestAnimationFrame(tick);
  };
  /** @param {number} k */
  const step = (k) => {
    stop();
    show(k);
  };

  const first = button("◂◂", "to the begin", () => step(0));
  const back = button("◂", "one step back", () => step(at - 1));
  const play = button("Play", "play", () => (playing ? stop() : start()));
  const forth = button("▸", "one step on", () => step(at + 1));
  const slider = /** @type {HTMLInputElement} */ (make("input", ""));
  slider.type = "range";
  slider.min = "0";
  slider.setAttribute("aria-label", "moment");
  slider.addEventListener("input", () => step(Number(slider.value)));
  const clock_ = make("output", "");
  bar.append(slider, clock_);
  bar.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      ArrowLeft: () => step(at - 1),
      ArrowRight: () => step(at + 1),
      Home: () => step(0),
      End: () => step(last()),
      p: () => (playing ? stop() : start()),
    }[event.key];
    // A notebook takes these keys, and those that press a button, for its cells.
    if (act || event.key === " " || event.key === "Enter") event.stopPropagation();
    if (!act) return;
    act();
    event.preventDefault();
  });
  const onCalm = () => {
    stop();
    play.hidden = calm.matches;
  };
  calm.addEventListener("change", onCalm);
  onCalm();

  // -- requests that are moved -------------------------------------------------------------------

  /** @param {object} content */
  const ask = (content) => {
    if (!send(model, content)) write(problem, "The kernel has gone: the figure plays, and cannot be changed.");
  };
  /** Let each request of a client be moved, by its keys or by dragging. @param {SVGElement} life */
  const movable = (life) => {
    const request = Number(life.dataset.client);
    const [, , [, width]] = /** @type {Drawn} */ (drawn).stage;
    const span = model.get("span_ms") || 1;
    const came = Number(life.dataset.at);
    /** @param {number} ms */
    const rounded = (ms) => Math.max(0, Math.round(ms / model.get("grid_ms")) * model.get("grid_ms"));
    const move = (/** @type {number} */ ms) => ask({ kind: "move", request, at_ms: rounded(ms) });
    life.setAttribute("tabindex", "0");
    life.setAttribute("role", "slider");
    life.setAttribute("aria-label", `arrival of request ${life.dataset.label}`);
    life.setAttribute("aria-valuemin", "0");
    life.setAttribute("aria-valuemax", String(Math.max(span, came)));
    life.setAttribute("aria-valuenow", String(came));
    life.setAttribute("aria-valuetext", ms_text(came));
    life.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
      move(came + by * model.get("grid_ms"));
      event.preventDefault();
      event.stopPropagation();
    });
    life.addEventListener("pointerdown", (event) => {
      const from = event.clientX;
      life.setPointerCapture(event.pointerId);
      const onMove = (/** @type {PointerEvent} */ to) => {
        life.style.transform = `translateX(${to.clientX - from}px)`;
      };
      const onUp = (/** @type {PointerEvent} */ to) => {
        life.removeEventListener("pointermove", onMove);
        life.style.transform = "";
        if (Math.abs(to.clientX - from) > 2) move(came + ((to.clientX - from) / width) * span);
      };
      life.addEventListener("pointermove", onMove);
      life.addEventListener("pointerup", onUp, { once: true });
      const onCancel = () => {
        life.style.transform = "";
      };
      life.addEventListener("pointercancel", onCancel, { once: true });
    });
  };

  // -- drawing what the kernel sends -------------------------------------------------------------

  /** @param {string} tag @param {Record<string, string>} attributes */
  const mark_in = (tag, attributes) => build([tag, attributes, []]);
  const build_all = () => {
    const staged = /** @type {Staged[]} */ (stages)[shown];
    if (!staged) return;
    const scene = build(staged[0]);
    // The requests inside are there for the keyboard, which an image would hide.
    scene.setAttribute("role", "group");
    const [left, width, top, bottom] = staged[2];
    const cover = mark_in("rect", {
      x: String(left + width), y: String(top), width: "0", height: String(bottom - top),
      class: "nbt-f-bg",
    });
    const line = mark_in("path", { d: `M0 ${top}V${bottom}`, class: "nbt-s-fg", "stroke-width": "1.5" });
    /** @param {string} name */
    const all = (name) => [...scene.querySelectorAll(name)].map((one) => /** @type {SVGElement} */ (one));
    drawn = { stage: staged, tokens: all(".nbt-token"), reasons: all(".nbt-reason"), cover, line };
    scene.append(cover, line);
    picture.replaceChildren(scene);
    if (model.get("fields").length) all(".nbt-life[data-client]").forEach(movable);
    const moved = model.get("moved");
    if (moved >= 0) /** @type {SVGElement | null} */ (scene.querySelector(`[data-client="${moved}"]`))?.focus();
  };
  const build_form = () => {
    const all = /** @type {[string, string, string, any][]} */ (model.get("fields"));
    form.hidden = !all.length;
    if (JSON.stringify(all) === fields) return;
    fields = JSON.stringify(all);
    const focused = /** @type {HTMLInputElement | null} */ (form.querySelector(":focus"))?.name;
    form.replaceChildren();
    for (const [name, label, kind, value] of all) {
      const input = /** @type {HTMLInputElement} */ (make("input", ""));
      input.type = kind;
      input.name = name;
      if (kind === "checkbox") input.checked = value;
      else input.value = value;
      if (kind === "number") Object.assign(input, { min: "0", step: "any" });
      const place = make("label", "", label);
      place.append(input);
      form.append(place);
    }
    const run = /** @type {HTMLButtonElement} */ (make("button", "", "Run"));
    run.type = "submit";
    form.append(run);
    button("Reset", "as it was at first", () => ask({ kind: "reset" }), form);
    if (focused) /** @type {HTMLElement | null} */ (form.querySelector(`[name=${focused}]`))?.focus();
  };
  const edit = () => {
    /** @type {Record<string, any>} */
    const changes = {};
    for (const [name, , kind, value] of model.get("fields")) {
      const input = /** @type {HTMLInputElement} */ (form.elements.namedItem(name));
      const now = kind === "checkbox" ? input.checked : input.value;
      if (now !== value) changes[name] = now;
    }
    if (Object.keys(changes).length) ask({ kind: "edit", changes });
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    edit();
  });
  // A box that is ticked, and a number that is stepped, change the figure at once.
  form.addEventListener("change", edit);
  for (const one of [form, predict]) one.addEventListener("keydown", (event) => event.stopPropagation());

  const answer_label = make("label", "", "your batches");
  const answer = /** @type {HTMLInputElement} */ (make("input", ""));
  answer.type = "text";
  answer.placeholder = "[1, 1]";
  answer_label.append(answer);
  const check = /** @type {HTMLButtonElement} */ (make("button", "", "Check"));
  check.type = "submit";
  predict.append(answer_label, check);
  button("Show", "show what happens without an answer", () => ask({ kind: "show" }), predict);
  predict.addEventListener("submit", (event) => {
    event.preventDefault();
    ask({ kind: "check", answer: answer.value });
  });

  const draw = () => {
    const asked = model.get("question");
    write(title, model.get("title"));
    write(finding, model.get("finding"));
    question.hidden = predict.hidden = !asked;
    finding.hidden = Boolean(asked);
    if (question.dataset.asked !== asked) {
      question.dataset.asked = asked;
      question.replaceChildren(
        ...String(asked).split("\n").filter(Boolean).map((line) => make("p", "", line.replaceAll("`", ""))),
      );
    }
    const [verdict, ...lines] = /** @type {string[]} */ (model.get("mark"));
    mark.hidden = !verdict;
    if (verdict) {
      mark.className = `nbt-figure-mark nbt-${verdict}`;
      if (mark.innerText !== lines.join("\n")) mark.replaceChildren(...lines.map((line) => make("p", "", line)));
    }
    write(problem, model.get("problem"));
    problem.hidden = !model.get("problem");
    bar.hidden = words.hidden = last() < 0;
    build_form();
    const all = /** @type {Staged[]} */ (model.get("stages"));
    const best = widest(all.map(([scene]) => scene), root);
    if (all === stages && best === shown) return;
    const fresh = all !== stages;
    stages = all;
    shown = best;
    stop();
    build_all();
    slider.max = String(Math.max(0, last()));
    show(fresh ? last() : at);
  };

  const done = follow(
    model,
    ["stages", "moments", "fields", "title", "finding", "problem", "question", "mark"],
    draw,
    root,
  );
  const sizes = new ResizeObserver(() => root.isConnected && draw());
  sizes.observe(root);
  return () => {
    stop();
    calm.removeEventListener("change", onCalm);
    sizes.disconnect();
    done();
    root.remove();
  };
}

export default widget(render);
