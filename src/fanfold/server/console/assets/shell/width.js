/** How wide the window is, for parts that are built differently on a phone. */
import { useEffect, useState } from "../vendor/preact.js";

/** Whether a media query applies, now and later. @param {string} media */
export function useMedia(media) {
  const [applies, setApplies] = useState(() => matchMedia(media).matches);
  useEffect(() => {
    const list = matchMedia(media);
    const change = () => setApplies(list.matches);
    change();
    list.addEventListener("change", change);
    return () => list.removeEventListener("change", change);
  }, [media]);
  return applies;
}

export const usePhone = () => useMedia("(max-width: 760px)");
