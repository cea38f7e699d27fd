/** @param {{model: Model, el: HTMLElement}} context */
function render({ model, el }) {
  const root = make("div", "nbt-root nbt-frames");
  const svg = build(["svg", { role: "img" }, []]);
  const image = build(["image", {}, []]);
  const over = build(["g", {}, []]);
  const words = make("div", "nbt-frames-words");
  svg.append(image, over);
  root.append(svg, words);
  el.append(root);
  let shown = "";
  const draw = () => {
    const frame = model.get("frame");
    const width = model.get("width");
    const height = model.get("height");
    const before = shown;
    if (frame.byteLength > 0) {
      const bytes = new Uint8Array(frame.buffer, frame.byteOffset, frame.byteLength);
      shown = URL.createObjectURL(new Blob([bytes], { type: "image/jpeg" }));
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.setAttribute("width", String(width));
      image.setAttribute("width", String(width));
      image.setAttribute("height", String(height));
      // The frame before stays until this one is decoded: nothing flickers.
      image.addEventListener("load", () => URL.revokeObjectURL(before), { once: true });
      image.setAttribute("href", shown);
      over.replaceChildren(...model.get("over").map(build));
    }
    svg.setAttribute("aria-label", model.get("sentence") || "no frame yet");
    write(words, model.get("sentence"));
  };
  const stop = follow(model, ["frame", "over", "sentence"], draw, root);
  return () => {
    stop();
    URL.revokeObjectURL(shown);
    root.remove();
  };
}

export default widget(render);
