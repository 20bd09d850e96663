/**
 * A graph that is too wide for its pane continues in a second row, as text does.
 *
 * It is cut only between columns, where nothing but edges passes. A graph of which too many edges would have to turn, or that
 * has many nodes, stays one row that scrolls, with a small map of it.
 */

const WORTH_IT = 0.8;
const MOST_NODES = 80;
const MOST_TURNS = 8;
const LANE = 5;
const MARGIN = 22;
const BETWEEN = 22;

/** The layout in rows of at most a width; the same layout if it fits or cannot be cut. @param {any} layout @param {number} room */
export function wrapped(layout, room) {
  if (!(room > 0) || layout.width * WORTH_IT <= room || layout.nodes.length > MOST_NODES) return layout;
  const blocks = columnsOf(layout.nodes);
  const most = Math.max(room - 2 * (MARGIN + LANE * 2), ...blocks.map((block) => block.to - block.from));
  const rows = /** @type {{from: number, to: number}[]} */ ([]);
  for (const block of blocks) {
    const row = rows[rows.length - 1];
    if (row && block.to - row.from <= most) row.to = block.to;
    else rows.push({ ...block });
  }
  if (rows.length < 2) return layout;
  const rowOf = (/** @type {number} */ x) => Math.max(0, rows.findLastIndex((row) => row.from - 1 <= x));
  /** The points of each edge by the row they are in: only those of the first and the last row are drawn. */
  const cut = layout.edges.map((/** @type {any} */ edge) => {
    const first = rowOf(edge.points[0][0]), last = rowOf(edge.points[edge.points.length - 1][0]);
    const within = (/** @type {number} */ row) => edge.points.filter((/** @type {[number, number]} */ [x]) => rowOf(x) === row);
    return { edge, first, last, head: within(first), tail: first === last ? [] : within(last) };
  });
  const lanes = rows.map(() => 0);
  const turns = cut.filter((/** @type {any} */ one) => one.first !== one.last);
  if (turns.length > MOST_TURNS) return layout;
  for (const one of turns) one.lane = lanes[one.first]++;
  const margin = MARGIN + LANE * Math.max(...lanes);
  let y = 0;
  const placed = rows.map((row, i) => {
    const inside = layout.nodes.filter((/** @type {any} */ node) => rowOf(node.x) === i);
    const heights = cut.flatMap((/** @type {any} */ one) => [...(one.first === i ? one.head : []), ...(one.last === i ? one.tail : [])]).map((/** @type {any} */ point) => point[1]);
    const top = Math.min(...inside.map((/** @type {any} */ node) => node.y), ...heights);
    const bottom = Math.max(...inside.map((/** @type {any} */ node) => node.y + node.h), ...heights);
    const made = { dx: margin - row.from, dy: y - top, right: margin + row.to - row.from, bottom: y + bottom - top };
    y = made.bottom + BETWEEN + LANE * lanes[i];
    return made;
  });
  const moved = (/** @type {[number, number][]} */ points, /** @type {number} */ row) => points.map(([x, at]) => [x + placed[row].dx, at + placed[row].dy]);
  return {
    ...layout,
    width: Math.max(...placed.map((row) => row.right)) + margin,
    height: placed[placed.length - 1].bottom,
    nodes: layout.nodes.map((/** @type {any} */ node) => ({ ...node, x: node.x + placed[rowOf(node.x)].dx, y: node.y + placed[rowOf(node.x)].dy })),
    edges: cut.map((/** @type {any} */ { edge, first, last, head, tail, lane }) => first === last ? { ...edge, points: moved(head, first) } : {
      ...edge,
      points: [...moved(head, first), ...moved(tail, last)],
      turn: { at: head.length, right: placed[first].right + 8 + LANE * lane, between: placed[first].bottom + BETWEEN / 2 + LANE * lane, left: margin - 16 - LANE * lane },
    }),
  };
}

/** Where the columns begin and end: nodes that overlap sideways are one. @param {any[]} nodes */
function columnsOf(nodes) {
  const found = /** @type {{from: number, to: number}[]} */ ([]);
  for (const node of [...nodes].sort((a, b) => a.x - b.x)) {
    const last = found[found.length - 1];
    if (last && node.x <= last.to) last.to = Math.max(last.to, node.x + node.w);
    else found.push({ from: node.x, to: node.x + node.w });
  }
  return found;
}
