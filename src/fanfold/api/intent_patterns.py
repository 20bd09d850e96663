"""Decide by text patterns alone whether a request suits a workflow: no model, no clock, no project.

A workflow suits work in several phases, or over many parts. For everything else one agent is better and
cheaper. So a request only suits a workflow if a pattern matches.

Rules
* There is one table, read from top to bottom. The first matching row decides, and gives the reason.
* Rows for one thing come before rows for many: "fix all errors in this file" is one file.
* Only an explicit request for several agents or a workflow comes before that.
* Rows match how requests are phrased, not their subjects. They are tested with requests that were labelled
  before any row was written (`tests/planning`).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from fanfold.api.display import RunUsage
from fanfold.language.project_commands import find_own_command
from fanfold.language.terminal import one_line
from fanfold.workspace.ignored import CACHES, DEPENDENCIES

MAX_CHARS = 4_000
"""Limit for the examined text: the beginning of a request shows its intent."""

Kind: TypeAlias = Literal["audit", "migrate", "research", "review", "build", "general"]


class IntentPattern(Struct, frozen=True):
    """One pattern: what a match means, and why."""

    name: str
    suitable: bool
    reason: str
    pattern: str


class Suitability(Struct, frozen=True):
    """Whether a request suits a workflow of several agents."""

    suitable: bool
    reason: str
    by: Literal["model", "patterns"]
    pattern: str = ""
    """The name of the row that decided, if patterns answered."""
    note: str = ""
    """Why the model was not asked, or gave no answer."""
    usage: RunUsage | None = None
    """The usage of the model's answer."""


_POLITE = (
    r"(?i)^(?:(?:please|hi|hey|hello|ok(?:ay)?|so|now|bitte|kannst du|könntest du|s'il te plaît|peux-tu"
    r"|por favor|puedes|podrías|per favore|puoi|пожалуйста|можешь|请|帮我"
    r"|(?:can|could|would|will) you|i(?:'d| would)? (?:need|want|like) (?:you )?to)\b[\s,:!]*)+(?=\S)"
)

_NOUNS_OF_ONE = (
    r"function|method|line|file|class|sentence|paragraph|module|component|test|loop|command|variable|error"
    r"|message|snippet|query|string|regex|import|json|yaml|signature|button|commit|word|list|table|screenshot"
    r"|stack ?trace|exception|script|page|expression|statement|block|section|import|warning"
)
_NUMBERS = (
    r"(?:[5-9]|\d{2,6}|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty"
    r"|fifty|sixty|a hundred|hundreds of|dozens of"
    r"|drei|vier|fünf|sechs|sieben|acht|zehn|zwölf|zwanzig"
    r"|trois|quatre|cinq|six|sept|huit|dix|douze|vingt|tres|cuatro|cinco|seis|siete|ocho|diez|doce|veinte)"
)
_THINGS = (
    r"(?:files?|modules?|packages?|services?|components?|pages?|tests?|scripts?|classes|endpoints?|repos"
    r"|repositories|tickets?|issues?|documents?|logs?|queries|schemas?|languages?|sources?|vendors?"
    r"|candidates?|commits?|transcripts?|interviews?|customers?|apps?|databases?|libraries|dependencies"
    r"|functions|dateien|module|pakete|dienste|komponenten|seiten|skripte|klassen|sprach\w+|anbieter|quellen"
    r"|fichiers|modules|paquets|composants|pages|fournisseurs|tickets|archivos|módulos|paquetes|servicios"
    r"|componentes|páginas|proveedores|arquivos|pacotes|serviços|moduli|pacchetti|servizi|componenti|pagine)"
)

PATTERNS = (
    IntentPattern("nothing", False, "it asks for nothing", r"^\W*$"),
    IntentPattern(
        "asking how", False, "it asks how something is done, or what it is",
        r"^(?:how (?:do|can|could|would|should|to|does|did)\b|what(?:'s| is| are| does)\b|why\b"
        r"|wie (?:kann|könnte|soll|macht|geht|funktioniert)\b|was (?:ist|sind|macht|bedeutet)\b|warum\b"
        r"|comment (?:puis-je|peut-on|faire|fonctionne)\b|qu'est-ce|pourquoi\b"
        r"|¿?(?:cómo|qué (?:es|son)|por qué)\b|come (?:posso|si|funziona)\b"
        r"|как (?:мне|я|можно|работает)\b|что такое\b|почему\b)",
    ),
    IntentPattern(
        "explicit", True, "it asks for several agents, or for a workflow",
        r"\b(?:in parallel|concurrently|fan(?:ned)? out|side by side|simultaneously)\b"
        r"|\b(?:several|multiple|separate|independent|different|two|three|four|five|six|\d+)"
        r" (?:\w+ )?(?:agents?|reviewers?|critics?|analysts?|subagents?|perspectives|angles|experts)\b"
        r"|\b(?:one|an?|someone) (?:agent|analyst|reviewer|expert|worker)s? (?:each|per|for each)\b"
        r"|\bone (?:agent|analyst|reviewer|expert) (?:per|each)\b|\b(?:analyst|agent|reviewer)s? each\b"
        r"|\b(?:reviewer|agent|analyst) per \w+|\bwith a team\b|\bteam of\b|\bseveral angles\b"
        r"|\b(?:create|build|make|set up|write|design|draft|plan|start) (?:me )?an? (?:\w+ ){0,2}"
        r"(?:workflow|pipeline)\b"
        r"|\bindependently\b|\bsecond agent\b|\bdebate\b"
        r"|\bmehreren? (?:agenten|blickwinkeln?|gutachtern?)\b|\bparallel\b|\b(?:zweiten|anderen) agenten\b"
        r"|\ben parall[eè]le\b|\bplusieurs (?:agents|angles|points de vue)\b"
        r"|\ben paralelo\b|\bvarios (?:agentes|ángulos)\b|\bin parallelo\b|\bem paralelo\b"
        r"|\bпараллельно\b|\bнескольк\w+ (?:агент|рецензент|эксперт)\w*|병렬|여러 에이전트"
        r"|并行|多个(?:代理|智能体|角度)|並列|複数の(?:エージェント|観点|視点)",
    ),
    IntentPattern(
        "looking", False, "it wants something shown or explained",
        r"^(?:show|list|print|tell me|explain|describe|display|count|find out what|give me (?:a|an|the|one)\b"
        r"(?! (?:\w+ )?(?:report|analysis|audit))|say|define"
        r"|zeig|erklär|liste|nenne|sag mir|beschreib|explique|montre|affiche|décris|dis-moi"
        r"|muestra|explica|lista|dime|describe|mostre|liste|spiega|mostra|elenca|dimmi"
        r"|покажи|объясни|перечисли|расскажи|опиши"
        r"|解释|显示|列出|说明|告诉我)"
        r"|(?:説明して|表示して|見せて|教えて)",
    ),
    IntentPattern(
        "question", False, "it is a question",
        r"^(?:what|why|how|who|whose|which|where|when|is|are|was|were|does|did|has|have i|should i|am i"
        r"|do (?:all|any|the|we|you|i|they|these|those|both|\w+s)\b|can i|may i"
        r"|was|warum|wie|wer|welche[rsn]?|wo|wann|wieso|weshalb|ist|sind|gibt es"
        r"|pourquoi|que|qu'|quoi|comment|combien|quel(?:le)?s?|où|quand|est-ce"
        r"|qué|por qué|porque|cómo|cuál(?:es)?|cuánt[oa]s?|dónde|quién|cuándo"
        r"|o que|por que|qual|quais|como|quant[oa]s|onde|quem"
        r"|cosa|che cosa|perché|come|quale|quali|quant[ei]|dove|chi"
        r"|что|чем|почему|зачем|как|како[йе]|какая|какие|где|кто|когда|сколько)\b"
        r"|^[¿]|为什么|什么|怎么|哪[个些里]|多少|(?:ですか|ますか|でしょうか|何|なぜ|どう)"
        r"|왜|무엇|어떻게|어디|(?:인가요|나요|까요)\\?",
    ),
    IntentPattern(
        "one artefact", False, "it wants one thing written",
        r"^(?:write|create|generate|make|add|give me|implement|build|draw|name)(?: me)? (?:a|an|one|the)"
        r" (?:\w+[ -]){0,2}?(?:function|method|regex|one-liner|script|class|haiku|poem|test|docstring|comment"
        r"|uuid|branch|line|query|snippet|check|loop|button|message|mail|sentence)\b",
    ),
    IntentPattern(
        "one place", False, "it is about one place",
        rf"\b(?:this|that|the (?:last|first|next)) (?:one )?(?:\w+ )?(?:{_NOUNS_OF_ONE})\b"
        rf"|\b(?:these|those) two \w+|\bline \d+|\bthe (?:typo|bug|button)\b"
        r"|\b[\w/-]+\.(?:py|js|ts|tsx|jsx|md|rs|go|java|c|h|cpp|rb|php|css|html|json|ya?ml|toml|txt|sh)\b"
        r"|\bdies(?:e[rmns]?)?\b|\bzeile \d+|\b(?:den|der) tippfehler\b"
        r"|\bce(?:t|tte)?\b(?! soir)|\bligne \d+"
        r"|\best[ea]\b|\blínea \d+|\blinha \d+|\bquest[oa]\b|\briga \d+"
        r"|\bэт(?:от|а|о|у|ой|ом|ого)\b|\bстрок[аеу] \d+"
        r"|这个|这段|这行|这一|この|이 (?:함수|파일|줄|코드|오류|테스트|메서드)",
    ),
    IntentPattern(
        "one command", False, "it is one command",
        r"^(?:re-?run|run|build|start|stop|execute|launch|lance|ejecuta|execute|esegui|starte|cancel|pause"
        r"|resume|undo|commit|push|verify that|check (?:whether|that|if)|运行|執行|実行)\b"
        r"(?!.*(?:\band\b|\bthen\b|,|;|\bfor each\b|\bfor every\b))",
    ),
    IntentPattern(
        "many parts", True, "it is about many parts",
        r"\b(?:every|each|everywhere|throughout|code ?base|monorepo|across)\b|\ball\b(?! right)"
        r"|\b(?:whole|entire) \w+|\bevery ?night\b|\bper (?:package|file|module|service|cluster|language)\b"
        rf"|\b{_NUMBERS} (?:[\w-]+ ){{0,3}}?{_THINGS}\b"
        r"|\b(?:alle[nrms]?|sämtliche[nrms]?|jede[nrms]?|jeweils|gesamte[nrms]?|überall)\b"
        r"|\b(?:tou(?:s|tes) les|chaque|chacune?|l'ensemble d|tout (?:le|l')|toute la)"
        r"|\b(?:tod[oa]s (?:l[oa]s|os|as)|cada|tod[oa] (?:el|la|o|a))\b"
        r"|\b(?:tutti (?:i|gli)|tutte le|ogni|ciascun[oa]?|tutto (?:il|lo)|tutta la)\b"
        r"|\b(?:вс[её]х?|всеми?|всего|вс[юя]|весь|кажд\w+|повсюду)\b|모든|각각|각 |전체"
        r"|所有|全部|每[个一份]|逐[个一]|整个|すべて|全て|全ファイル|全モジュール|各|それぞれ",
    ),
    IntentPattern(
        "stages", True, "it goes through several stages",
        r"\b(?:step by step|stage by stage|in (?:stages|phases)|end to end|one by one"
        r"|(\w+) by \1)\b"
        r"|\b(?:plan|design|research|inventory)\b.{0,60}\b(?:implement|build|code|write|migrat\w+)\b.{0,80}"
        r"\b(?:review|test|verify|check)"
        r"|\b(?:find|audit|scan|review|investigate|collect|gather)\b.{0,200}\b(?:fix|repair|replace|remove"
        r"|patch|write)\b.{0,200}\b(?:verify|test|check|review|prove|confirm|report)"
        r"|\buntil\b.{0,60}\b(?:pass|green|clean|above|done|compiles?)"
        r"|\beinen? nach dem anderen\b|\bschritt für schritt\b|\bétape par étape\b|\bpaso a paso\b"
        r"|\b(?:un[oa] por un[oa]|un[oa] a un[oa])\b|\bbis\b.{0,40}\b(?:grün|bestehen|durchlaufen)\b",
    ),
    IntentPattern(
        "research", True, "it is research with sources",
        r"\b(?:research|investigate|gather|collect|compare|survey|evaluate|analy[sz]e|recherch\w+|vergleich\w*"
        r"|compare[rz]?|analyse[rz]?|investiga|compara|pesquis\w+|ricerca)\b.{0,200}"
        r"\b(?:sources?|cited?|citations?|brief|report|recommend\w*|quellen|bericht|rapport|synthèse|fuentes"
        r"|informe|relatório|rapporto|angles?|ángulos|blickwinkel\w*)\b"
        r"|研究.{0,40}(?:报告|引用|角度)|調査.{0,40}(?:レポート|報告|出典)",
    ),
)  # fmt: skip

_KINDS: dict[Kind, str] = {
    "review": (
        r"\b(?:review|critics?|refute|proofread|debate|gegenles|begutacht|relire|révis)\w*"
        r"(?!.*\b(?:fix|migrat|build|implement|translat)\w*)"
    ),
    "migrate": (
        r"\b(?:migrat|migrier|migr[ae]|convert|port|upgrade|rename|replace|translat|traduc|traduis|tradu"
        r"|übersetz|moderni[sz]|locali[sz]|umstell|stell\w* .* um|refactor|add type)\w*"
        r"|\b(?:мигрир|перевед|перепиши|обнов)\w*|迁移|移行|翻译"
    ),
    "audit": (
        r"\b(?:audit|fix|vulnerab|security|find|scan|check|detect|remove|prüf|untersuch|beheb|corri[gj]"
        r"|revis|controll|triage|diagnos|провер|исправ|найди|аудит)\w*|审计|检查|修复|監査|修正"
    ),
    "research": (
        r"\b(?:research|recherch|compare|comparison|analys|analyz|investig|evaluat|sources|survey|study"
        r"|vergleich|pesquis|ricerc)\w*|研究|调查|比較|調査"
    ),
    "build": (
        r"\b(?:build|implement|create|develop|write|generate|draft|bau|schreib|erstell|écri|escrib|crea"
        r"|scriv|напиши|создай|собери)\w*|编写|実装|作成"
    ),
}


def judge(request: str) -> Suitability:
    """Return whether a request suits a workflow, and the row of the table that decided.

    >>> judge("Audit this function").pattern
    'one place'
    >>> judge("Migrate all 500 tests to pytest").suitable
    True
    """
    text = re.sub(_POLITE, "", _even(request)).lower()
    for row in PATTERNS:
        if _compiled(row.pattern).search(text):
            return Suitability(row.suitable, row.reason, "patterns", row.name)
    reason = "the request mentions no parts or phases"
    return Suitability(False, reason, "patterns", "no sign")


def kind_of(request: str) -> Kind:
    """Return the kind of work: it selects the template of a plan without a model."""
    text = _even(request).lower()
    for kind, pattern in _KINDS.items():
        if _compiled(pattern).search(text):
            return kind
    return "general"


def _even(request: str) -> str:
    """Return the request as one line, with plain apostrophes."""
    return " ".join(request[:MAX_CHARS].replace("\u2019", "'").split())


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


# -----------------------------------------------------------------------------------------------------------
# The shape of a project for the planner: languages, size, folders, tests. Names only, never contents
#
# Rules
# * Files are counted by their names. Only files that may define the test command are read
#   (`language.project_commands`). Only the command is passed on.
# * The search is bounded: a tree that is too large is reported as such.
# * A project may be hostile: links are not followed, and names are shown as text.

MAX_FILES = 20_000
MAX_ENTERED = 5_000
"""Maximum of visited folders, at any depth."""
MAX_FOLDERS = 40
"""Maximum of named top-level folders."""
MAX_LANGUAGES = 8
NAME_CHARS = 60

_LANGUAGES = {
    "py": "Python", "js": "JavaScript", "jsx": "JavaScript", "mjs": "JavaScript", "ts": "TypeScript",
    "tsx": "TypeScript", "rs": "Rust", "go": "Go", "java": "Java", "kt": "Kotlin", "c": "C", "h": "C",
    "cpp": "C++", "cc": "C++", "hpp": "C++", "cs": "C#", "rb": "Ruby", "php": "PHP", "swift": "Swift",
    "scala": "Scala", "sh": "Shell", "sql": "SQL", "vue": "Vue", "svelte": "Svelte", "ex": "Elixir",
    "md": "Markdown", "rst": "reStructuredText", "html": "HTML", "css": "CSS",
}  # fmt: skip


class ProjectShape(Struct, frozen=True):
    """A short description of a project."""

    files: int
    whole: bool
    """False: there are more files than were counted."""
    languages: dict[str, int]
    """Number of files per language, most frequent first."""
    folders: tuple[str, ...]
    """The top-level folders."""
    tests: str
    """The project's own test command; empty if none is known."""
    lint: str

    def described(self) -> str:
        """Return the description for a prompt."""
        many = f"{self.files} files" if self.whole else f"more than {self.files} files"
        spoken = ", ".join(f"{name} ({count})" for name, count in self.languages.items()) or "none known"
        lines = (
            f"size: {many}",
            f"languages: {spoken}",
            f"folders: {', '.join(self.folders) or 'none'}",
            f"tests: {self.tests or 'nothing says how to run them'}",
            f"lint: {self.lint or 'nothing says how to run it'}",
        )
        return "\n".join(lines)


def look_at(folder: Path) -> ProjectShape:
    """Return the shape of the project in a folder."""
    names = list(_file_names(str(folder)))
    known = [name for name in names if name is not None]
    languages = (_LANGUAGES.get(name.rpartition(".")[2].lower()) for name in known)
    counted = Counter(language for language in languages if language is not None)
    folders = [entry.name for entry in _entries(str(folder)) if entry.is_dir(follow_symlinks=False)]
    usual = sorted(counted.items(), key=lambda entry: (-entry[1], entry[0]))
    return ProjectShape(
        files=len(known),
        whole=len(known) == len(names),
        languages=dict(usual[:MAX_LANGUAGES]),
        folders=tuple(one_line(name, NAME_CHARS) for name in folders[:MAX_FOLDERS]),
        tests=_own(folder, "tests"),
        lint=_own(folder, "lint"),
    )


def _own(folder: Path, gate: str) -> str:
    found = find_own_command(folder, gate)
    return "" if found is None else " ".join(found.run)


def _file_names(top: str) -> Iterator[str | None]:
    """Yield names of files, folder by folder; None at the end if the limit was reached."""
    waiting, seen, entered = [top], 0, 0
    while waiting:
        entered += 1
        if entered > MAX_ENTERED:
            yield None
            return
        for entry in _entries(waiting.pop()):
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                seen += 1
                yield entry.name if seen <= MAX_FILES else None
                if seen > MAX_FILES:
                    return


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """List the entries of a folder, without hidden folders, dependencies and caches."""
    try:
        with os.scandir(folder) as listing:
            found = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        return []
    return [
        entry
        for entry in found
        if not entry.name.startswith(".") and entry.name not in DEPENDENCIES and entry.name not in CACHES
    ]
