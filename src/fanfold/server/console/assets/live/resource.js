/** Something a page shows: asked for once, and again when the stream says that it may have changed. */
import { useEffect, useRef, useState } from "../vendor/preact.js";
import { get } from "./api.js";
import { onRun, returns } from "./stream.js";

const LEAST_MS = 350;

/**
 * @template T
 * @typedef {{data: T | null, error: any, loading: boolean, reload: () => void}} Resource
 */

/**
 * @param {string | null} path null: there is nothing to show yet
 * @param {((event: {run_id: string}) => boolean) | boolean} [concerns] which events make it out of date
 * @returns {Resource<any>}
 */
export function useResource(path, concerns = false) {
  const [found, setFound] = useState(
    /** @type {{path: string | null, data: any, error: any, loading: boolean}} */ ({
      path: null, data: null, error: null, loading: path !== null,
    }),
  );
  const again = useRef(() => {});
  const judge = useRef(concerns);
  judge.current = concerns;

  useEffect(() => {
    if (path === null) return;
    let over = false;
    let timer = 0;
    let busy = false;
    let wanted = false;
    let asked = 0;
    const abort = new AbortController();
    const load = async () => {
      if (busy) return void (wanted = true);
      busy = true;
      wanted = false;
      asked = Date.now();
      try {
        const data = await get(path, abort.signal);
        if (!over) setFound({ path, data, error: null, loading: false });
      } catch (error) {
        // What was shown stays in sight while the server is away.
        if (!over) setFound((before) => ({ path, data: before.path === path ? before.data : null, error, loading: false }));
      }
      busy = false;
      if (wanted && !over) soon();
    };
    const soon = () => {
      if (document.hidden) return void (wanted = true);
      if (timer) return;
      timer = setTimeout(() => {
        timer = 0;
        load();
      }, Math.max(0, LEAST_MS - (Date.now() - asked)));
    };
    const seen = () => !document.hidden && wanted && soon();
    again.current = load;
    setFound((before) => (before.path === path ? before : { ...before, error: null, loading: true }));
    load();
    const stop = onRun((event) => {
      const word = judge.current;
      if (typeof word === "function" ? word(event) : word) soon();
    });
    let first = true;
    const stopReturns = returns.subscribe(() => {
      if (!first) load();
      first = false;
    });
    document.addEventListener("visibilitychange", seen);
    return () => {
      over = true;
      abort.abort();
      clearTimeout(timer);
      stop();
      stopReturns();
      document.removeEventListener("visibilitychange", seen);
    };
  }, [path]);

  const mine = found.path === path;
  return {
    data: mine || path !== null ? found.data : null,
    error: mine ? found.error : null,
    loading: found.loading || !mine,
    reload: () => again.current(),
  };
}
