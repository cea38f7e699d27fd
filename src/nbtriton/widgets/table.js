/** @param {{model: Model, el: HTMLElement}} context */
function render({ model, el }) {
  const root = make("div", "nbt-root nbt-table");
  const table = make("div", "");
  root.append(table);
  el.append(root);
  const draw = () => {
    table.innerHTML = model.get("html");
  };
  const stop = follow(model, ["html"], draw, root);
  return () => {
    stop();
    root.remove();
  };
}

export default widget(render);
