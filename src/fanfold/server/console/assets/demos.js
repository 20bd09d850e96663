/**
 * First runs that need no key: built-in recipes whose agents are scripted.
 *
 * Everything is real but the words: steps are scheduled, recorded, shown and can be forked like any others. The page says so
 * wherever it offers one. Only the last writes files, into a folder of its own.
 */

/** @param {string} output @param {number} delay_ms @param {number} tokens */
const answer = (output, delay_ms, tokens) => ({ output, delay_ms, usage: { input_tokens: tokens, output_tokens: Math.round(tokens / 4) } });

const COMPONENTS = ["cart", "catalogue", "checkout"];

export const DEMOS = [
  {
    recipe: "research-and-brief",
    title: "Research a topic",
    about: "Three agents, one after another: gather sources, choose what matters, write a brief.",
    inputs: { topic: "solid-state batteries", depth: "quick" },
    script: {
      default: "Scripted text of {{step}}.",
      steps: {
        gather: answer("Scripted: a model would list its sources here.\n\n1. A review of solid electrolytes\n2. A maker's road map\n3. Field data from buses", 1500, 420),
        angles: answer("Scripted: three angles that matter.\n\n- Cost falls slower than energy density rises\n- Interfaces, not bulk, decide lifetime\n- Pilot lines say more than announcements", 1200, 610),
        brief: answer("# Solid-state batteries\n\n*The text of this brief is scripted; the run is real.*\n\nCells with solid electrolytes promise **more energy in less space** [1]. What decides whether they arrive is the interface between the layers [2], and what a pilot line yields [3].\n\n| angle | for | against |\n|---|---|---|\n| density | measured in the lab | packs lose a third of it |\n| safety | nothing to leak | dendrites remain |\n\n## What we do not know\n\n- Lifetime in a vehicle beyond three years", 1600, 980),
      },
    },
  },
  {
    recipe: "research-debate-write",
    title: "Debate a question",
    about: "A question is split, researched in parallel, argued from both sides, judged, and written up.",
    inputs: { question: "Should a small team run its own database?" },
    script: {
      default: answer("Scripted text of {{step}}.", 900, 350),
      steps: {
        outline: { output: { parts: ["What does an outage cost?", "Who is awake at night?", "What does the managed one cost?"] }, delay_ms: 900 },
        judge: {
          output: {
            answer: "Scripted: for most small teams, no.", confidence: "medium", fallen: ["It is always cheaper"], open: ["What happens at ten times the load"],
            standing: [{ point: "Nights are the price", because: "research, part two" }],
          },
          delay_ms: 1200,
        },
        write: answer("## For most small teams: no\n\n*Scripted text, real run.*\n\nThe bill that decides is the one for attention.", 1400, 900),
      },
    },
  },
  {
    recipe: "build-components",
    title: "Build side by side",
    about: "Components are built and reviewed in parallel, each until its review passes, then integrated.",
    inputs: { brief: "A shop with a cart", components: COMPONENTS, folder: "fanfold-demo" },
    script: {
      default: answer("Scripted text of {{step}}; a model would have written code.", 1100, 500),
      steps: {
        contract: {
          output: { conventions: ["Money is whole cents"], interfaces: [{ component: "cart", purpose: "holds what is bought", offers: "add(item)", needs: "catalogue" }] },
          delay_ms: 1200,
        },
        ...Object.fromEntries(COMPONENTS.flatMap((name, i) => [1, 2].map((round) => [`component[${i}]#${round}/build`, { ...answer(`Scripted text: ${name}, version ${round}.`, 1100, 500), writes: { [`fanfold-demo/${name}/${name}.md`]: `# ${name}\n\nScripted, version ${round}.\n` } }]))),
        "component[*]#1/review": { output: { ok: false, problems: ["Scripted: the total is a float"] }, delay_ms: 800 },
        "component[*]#2/review": { output: { ok: true, problems: [] }, delay_ms: 800 },
      },
    },
  },
];
