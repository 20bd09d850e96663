/** What stands where there is nothing: still coming, went wrong, not there yet. */
import { Component, html } from "../vendor/preact.js";

/** @param {{error: any, what?: string}} props */
export function Trouble({ error, what }) {
  if (!error || error.code === "unreachable") return null;
  return html`<div class="notice tone-failed" role="alert">
    <strong>${what ? `${what}: ` : ""}${error.message}</strong>
    ${error.hint && html`<div class="hint">${error.hint}</div>`}
    <div class="quiet small mono">${error.code}</div>
  </div>`;
}

/** @param {{title: string, children?: any}} props */
export function Empty({ title, children }) {
  return html`<div class="card empty"><h2>${title}</h2>${children}</div>`;
}

/** @param {{label?: string}} props */
export const Loading = ({ label = "Loading" }) => html`<div class="skeleton" role="img" aria-label=${label}></div>`;

/** A resource in one of its states. @param {{of: any, children: (data: any) => any}} props */
export function Loaded({ of, children }) {
  if (of.data !== null && of.data !== undefined) return html`<${Trouble} error=${of.error} />${children(of.data)}`;
  return of.error ? html`<${Trouble} error=${of.error} />` : html`<${Loading} />`;
}

/**
 * Shows an error in place of a part that cannot be drawn, and reports it to the browser's console; the rest of the page works.
 * Another `of` is another try.
 * @extends {Component<{of: unknown, children?: any}>}
 */
export class Boundary extends Component {
  state = { error: null };
  /** @param {any} error */
  static getDerivedStateFromError(error) {
    return { error };
  }
  /** @param {any} error */
  componentDidCatch(error) {
    reportError(error);
  }
  /** @param {{of: unknown}} next */
  componentWillReceiveProps(next) {
    if (next.of !== this.props.of) this.setState({ error: null });
  }
  render() {
    if (!this.state.error) return this.props.children;
    return html`<div class="page"><${Trouble} what="This page cannot be shown" error=${this.state.error} /></div>`;
  }
}
