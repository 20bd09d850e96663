/** What was spent. An unknown cost is a dash, with the reason on hover. */
import { html } from "../vendor/preact.js";
import { cost, money } from "../text/format.js";

const UNKNOWN = "The price of the model is not known.";

/** @param {{usd: number | null | undefined, why?: string}} props */
export const Price = ({ usd, why = UNKNOWN }) => usd === null || usd === undefined ? html`<span title=${why}>–</span>` : html`<span>${money(usd)}</span>`;

/** `named`: beside other numbers, where a dash alone would be taken for a range. @param {{usage: any, named?: boolean}} props */
export function Cost({ usage, named }) {
  const text = cost(usage);
  return text === "–" ? html`<span title=${UNKNOWN}>${named ? "cost " : ""}–</span>` : html`<span>${text}</span>`;
}
