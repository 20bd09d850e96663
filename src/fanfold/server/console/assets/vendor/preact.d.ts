// What the console uses of the joined file, for the type check of its JSDoc.
export type Vnode = any;
export interface Signal<T> { value: T; peek(): T; subscribe(fn: (value: T) => void): () => void }
export function html(strings: TemplateStringsArray, ...values: unknown[]): Vnode;
export function h(type: any, props?: any, ...children: any[]): Vnode;
export function render(node: Vnode, into: Element): void;
export const Fragment: any;
export const options: any;
export class Component<P> {
  constructor(props: P);
  props: P;
  state: any;
  setState(next: any): void;
}
export function createRef<T>(): { current: T | null };
export function signal<T>(value: T): Signal<T>;
export function computed<T>(fn: () => T): Signal<T>;
export function effect(fn: () => void | (() => void)): () => void;
export function batch(fn: () => void): void;
export function useSignal<T>(value: T): Signal<T>;
export function useComputed<T>(fn: () => T): Signal<T>;
export function useSignalEffect(fn: () => void | (() => void)): void;
export function useEffect(fn: () => void | (() => void), on?: unknown[]): void;
export function useLayoutEffect(fn: () => void | (() => void), on?: unknown[]): void;
export function useMemo<T>(fn: () => T, on: unknown[]): T;
export function useCallback<T>(fn: T, on: unknown[]): T;
export function useRef<T>(value: T): { current: T };
export function useState<T>(value: T | (() => T)): [T, (next: T | ((before: T) => T)) => void];
