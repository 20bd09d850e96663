"""Workflow scripts of Claude Code, in words of our own, and what becomes of each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Workflow(NamedTuple):
    """`lost` are the lines that must be listed, and no others."""

    file: str
    text: str
    inputs: Mapping[str, str] = MappingProxyType({})
    script: Mapping[str, Any] = MappingProxyType({})
    steps: tuple[str, ...] = ()
    """Paths that completed."""
    lost: tuple[int, ...] = ()
    others: Mapping[str, str] = MappingProxyType({})
    """Files beside it."""


CLAUDE = {
    "row": Workflow("row.js", """\
export const meta = {
  name: 'row',
  description: 'Two agents in a row',
  phases: [{ title: 'Look' }],
}
phase('Look')
const found = await agent(`Look for ${args.topic}.`, { label: 'look' })
const text = await agent(`Write about: ${found}`, { label: 'write', model: 'haiku' })
return text
""", {"topic": "owls"}, {}, ("look", "write")),
    "together": Workflow("together.js", """\
export const meta = { name: 'together', description: 'x' }
const [a, b] = await parallel([
  () => agent('Is it safe?'),
  () => agent('Is it fast?', { agentType: 'Explore' }),
])
const end = await agent(`Sum up: ${a} and ${b}`)
return end
""", {}, {}, ("a", "b", "end")),
    "each": Workflow("each.js", """\
export const meta = { name: 'each', description: 'x' }
const read = await parallel(args.files.map(file => () => agent(`Read ${file}`)))
const done = await pipeline(args.files,
  (file) => agent(`Mend ${file}`),
  (mended, file) => agent(`Check ${mended} of ${file}`))
if (read.length > 3) {
  log('many')
}
return done
""", {"files": '["a", "b"]'}, {}, ("read[0]", "read[1]", "done[0]/done-1", "done[1]/done-2"), (6, 7)),
    "code": Workflow("code.mjs", """\
export const meta = { name: 'code', description: "x" }
const names = ['a', 'b']
let n = 0
const one = await agent('Say ' + args.word, { retries: THING })
while (n < 3) {
  n += 1
}
return one
""", {"word": "hello"}, {}, ("one",), (2, 3, 4, 5, 6)),
    "audit": Workflow("audit.js", """\
export const meta = {
  name: 'audit-fix',
  description: 'Audit packages, fix what is found, verify',
  whenToUse: 'before a release',
  phases: [{ title: 'Audit', detail: 'one agent per dimension' }, { title: 'Fix' }],
}
// await agent('never: this is a comment')
/* const x = await agent('nor this') */
const FINDINGS = {
  type: 'object',
  properties: { findings: { type: 'array', items: { type: 'string' } } },
  required: ['findings'],
}
const DIMENSIONS = [
  { key: 'bugs', prompt: 'Look for bugs' },
  { key: 'perf', prompt: 'Look for slow code' },
]
const target = args.target ?? 'src'
const { branch, depth } = args
phase('Audit')
const reviews = await parallel(DIMENSIONS.map((d, i) => () =>
  agent(`${d.prompt} in ${target}\\n(number ${i})`, {
    label: `review:${d.key}`, phase: 'Audit', schema: FINDINGS, effort: 'high',
  })
))
const all = reviews.filter(Boolean).flatMap(r => r.findings)
log(`${all.length} findings`)
phase('Fix')
const fixed = await pipeline(
  args.files,
  (file) => agent(`Fix ${file} on ${branch}`, { label: 'fix', isolation: 'worktree' }),
  async (result, file) => { return await agent("Verify " + file + ": " + JSON.stringify(result, null, 2)); },
)
for (const f of all) {
  if (!f) continue
  await agent(`Look again at ${f.replace(/[`'"]/g, '')}`)
}
const [a, b] = await parallel([() => agent('A'), async () => await agent('B', opts), () => fetch('http://x')])
let verdict = await agent(depth > 3 ? 'deep' : 'shallow', { model: pick(), ...rest })
verdict = await agent(`Judge ${verdict} with ${a} and ${b}`, { 'label': 'judge', label: 'twice' }, 3)
return { verdict, fixed, first: reviews[0] }
""", {"files": '["a"]'}, {"reviews[*]": {"output": {"findings": []}}},
        ("reviews[0]", "reviews[1]", "fixed[0]/fixed-2", "agent", "a", "b", "verdict", "judge"),
        (23, 26, 27, 31, 34, 35, 36, 38, 39, 39, 39, 40, 40)),
    "review": Workflow("review.js", """\
export const meta = { name: 'review', description: 'One reviewer for each lens, then somebody who doubts' }
const A = (typeof args === 'string') ? JSON.parse(args || '{}') : (args || {})
const base = (args && args.base) || 'main'
const depth = args?.depth ?? 'deep'
const given = args
const scope = given.scope || 'diff'
const LENSES = [{ key: 'bugs', words: 'wrong results' }, { key: 'tests', words: 'what is not tested' }]
const FOUND = { type: 'object', properties: { list: { type: 'array' } }, required: ['list'] }
const REAL = { type: 'object', properties: { real: { type: 'boolean' } }, required: ['real'] }
const reviewed = await pipeline(
  LENSES,
  (d) => agent(`Look for ${d.words} since ${base}, ${depth}, ${scope}`, { schema: FOUND, effort: 'high' }),
  (found, d) => parallel(
    (found && found.list ? found.list : []).map((f) => () =>
      agent(`Refute this of ${d.key}: ${JSON.stringify(f)}`, { schema: REAL, agentType: 'Explore' })
        .then((v) => ({ ...f, verdict: v })),
    ),
  ),
)
const again = await pipeline(A.files, (x) => agent(`Split ${x}`, { schema: FOUND }),
  async (parts) => parallel((parts?.list ?? []).map(p => () => agent('Do ' + p))))
return again
""", {"files": '["x"]'}, {
        "reviewed[*]/reviewed-1": {"output": {"list": ["a", "b"]}},
        "reviewed[*]/reviewed-2[*]": {"output": {"real": True}},
        "again[*]/again-1": {"output": {"list": []}},
    },
        ("reviewed[0]/reviewed-2[0]", "reviewed[1]/reviewed-2[1]", "again"), (16,)),
}  # fmt: skip
