// A pen that draws in the roles of a theme: on a canvas, or the same shapes as SVG when a picture is saved.

/** @typedef {[number, number, number, number][]} Pattern of a mark, as Python has it */
const ROLES = ["s0", "s1", "s2", "s3", "s4", "s5", "fg", "bg", "muted", "line", "panel"];
const FONT = 12;

/** @param {HTMLElement} root whose theme it has */
function rolePen(root) {
  const probe = make("span", "nbt-hidden-text");
  root.append(probe);
  /** @type {Record<string, string>} */
  const colours = {};
  let family = "sans-serif";
  /** @type {Map<string, string>} */
  const cuts = new Map();
  let pen = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
  /** The shapes of each canvas, one below the other, while a picture is made. @type {Spec[] | null} */
  let saved = null;
  let height = 0;

  let themed = "";

  /** Take over the theme, if it has changed: each colour that is read has the page compute its styles again. */
  const theme = () => {
    const style = getComputedStyle(root);
    const seen = [style.color, style.fontFamily, ...ROLES.map((role) => style.getPropertyValue(`--nbt-${role}`))].join();
    if (seen === themed) return;
    themed = seen;
    for (const role of ROLES) {
      probe.style.color = `var(--nbt-${role})`;
      colours[role] = getComputedStyle(probe).color;
    }
    family = getComputedStyle(root).fontFamily;
    cuts.clear();
  };

  /** Draw on a canvas of this size from now on. @param {HTMLCanvasElement} canvas @param {number} wide @param {number} tall */
  const onto = (canvas, wide, tall) => {
    saved?.push(["g", { transform: `translate(0 ${height})` }, []]);
    height += tall;
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(tall * ratio)) {
      canvas.width = Math.round(wide * ratio);
      canvas.height = Math.round(tall * ratio);
      canvas.style.width = `${wide}px`;
      canvas.style.height = `${tall}px`;
    }
    pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, wide, tall);
  };

  /** @param {string} tag @param {Record<string, string | number>} attributes @param {string[]} [words] */
  const keep = (tag, attributes, words = []) => saved?.at(-1)?.[2].push([
    tag, Object.fromEntries(Object.entries(attributes).map(([name, value]) => [name, String(value)])), words,
  ]);

  /** @param {string} text @param {boolean} [bold] */
  const width = (text, bold = false) => {
    pen.font = `${bold ? "600 " : ""}${FONT}px ${family}`;
    return pen.measureText(text).width;
  };

  /** A text cut to its room; the names of lanes differ at both ends. It is kept: measuring costs more than drawing.
   * @param {string} text @param {boolean} keep_end @param {number} room @param {boolean} bold */
  const cut = (text, keep_end, room, bold) => {
    const key = `${keep_end} ${Math.round(room)} ${bold} ${text}`;
    let words = cuts.get(key);
    if (words !== undefined) return words;
    let [least, most] = [Math.min(3, text.length), text.length];
    const shortened = (/** @type {number} */ many) =>
      many === text.length ? text : `${text.slice(0, Math.ceil(many / (keep_end ? 2 : 1)))}…${keep_end ? text.slice(-Math.floor(many / 2)) : ""}`;
    while (least < most) {
      const middle = Math.ceil((least + most) / 2);
      if (width(shortened(middle), bold) > room) most = middle - 1;
      else least = middle;
    }
    words = shortened(least);
    if (cuts.size > 1000) cuts.clear();
    cuts.set(key, words);
    return words;
  };

  /** @param {string} text @param {number} x @param {number} y @param {string} role
   * @param {CanvasTextAlign} [align] @param {boolean} [bold] @param {number} [room] */
  const letters = (text, x, y, role, align = "left", bold = false, room = Infinity) => {
    const words = room < Infinity ? cut(text, align === "right", room, bold) : text;
    pen.font = `${bold ? "600 " : ""}${FONT}px ${family}`;
    pen.textAlign = align;
    pen.fillStyle = colours[role];
    pen.fillText(words, x, y);
    if (!saved) return;
    const anchor = { right: "end", center: "middle" }[/** @type {string} */ (align)] ?? "start";
    keep("text", { x, y, fill: colours[role], "text-anchor": anchor, "font-weight": bold ? 600 : 400 }, [words]);
  };

  /** @param {number} x @param {number} y @param {number} wide @param {number} tall
   * @param {string} role @param {number} [alpha] @param {boolean} [outlined] */
  const box = (x, y, wide, tall, role, alpha = 1, outlined = false) => {
    pen.globalAlpha = alpha;
    pen.fillStyle = colours[role];
    pen.fillRect(x, y, wide, tall);
    pen.globalAlpha = 1;
    if (outlined) {
      pen.strokeStyle = colours[role];
      pen.lineWidth = 1;
      pen.strokeRect(x + 0.5, y + 0.5, Math.max(0, wide - 1), tall - 1);
    }
    if (!saved) return;
    const stroke = outlined ? colours[role] : "none";
    keep("rect", { x, y, width: wide, height: tall, fill: colours[role], "fill-opacity": alpha, stroke });
  };

  /** The lines of a mark's pattern, as Python draws them.
   * @param {number} x @param {number} y @param {number} wide @param {number} tall @param {string} role @param {Pattern} lines */
  const texture = (x, y, wide, tall, role, lines) => {
    pen.strokeStyle = colours[role];
    pen.globalAlpha = 0.8;
    for (const [at, thick, on, off] of lines) {
      const d = `M${x} ${y + at * tall}h${wide}`;
      pen.setLineDash(off ? [on, off] : []);
      pen.lineWidth = thick * tall;
      pen.stroke(new Path2D(d));
      const dashes = off ? `${on} ${off}` : "none";
      keep("path", { d, stroke: colours[role], "stroke-width": thick * tall, "stroke-dasharray": dashes, opacity: 0.8 });
    }
    pen.setLineDash([]);
    pen.globalAlpha = 1;
  };

  /** The right edge of what goes on: teeth, which need no colour.
   * @param {number} x @param {number} y @param {number} tall @param {string} role */
  const ragged = (x, y, tall, role) => {
    const teeth = Math.max(1, Math.round(tall / 4));
    const half = tall / teeth / 2;
    const d = `M${x} ${y}${`l3 ${half}l-3 ${half}`.repeat(teeth)}z`;
    pen.fillStyle = colours[role];
    pen.fill(new Path2D(d));
    keep("path", { d, fill: colours[role] });
  };

  /** All that is drawn meanwhile as one picture. @param {() => void} draw @param {number} wide */
  const picture = (draw, wide) => {
    [saved, height] = [[], 0];
    draw();
    const size = { width: String(wide), height: String(height) };
    const shapes = /** @type {Spec[]} */ ([["rect", { ...size, fill: colours.bg }, []], ...saved]);
    saved = null;
    return build(["svg", { xmlns: SVG, ...size, "font-family": family, "font-size": String(FONT) }, shapes]);
  };

  return { theme, onto, width, letters, box, texture, ragged, picture };
}
