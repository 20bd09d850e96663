"""What `fanfold --help` prints. Written by `make fix` from the commands."""

HELP = """\
Fan a job out to a team of AI agents and fold one answer back.

Usage: fanfold COMMAND [OPTIONS] [ARGUMENTS]

Run recipes:
  run         Run a recipe, or predict the run with --dry-run
  resume      Go on with a run that paused, waits or was killed
  pause       Pause a run; everything is kept
  cancel      Cancel a run and everything below it
  approve     Answer an approval with yes, or with one of its choices
  reject      Answer an approval with no
  answer      Answer the question of an ask step
  retry       Run again what failed, reusing what completed
  fork        Run again from a step on, reusing what the change does not reach
  diff        Show what steps merged or proposed, or changed before they failed
  apply       Merge what a step proposed into the project
  undo        Take back what a run or a step merged into the project

Look at runs:
  runs        List runs, newest first
  inspect     Show a run: its steps, child runs, result and cost
  watch       Watch a run live, whichever process drives it
  logs        Print a run's log, or follow it with -f
  transcript  What an agent was told, said and did, with tokens and prices
  explain     Why a run or step waits, was skipped, retried, or ran then
  whatif      What a run would have taken with another number of slots
  query       Search outputs, errors, prompts and transcripts
  costs       Show what runs cost, by recipe, model, day or run
  export      Write a run into one file that opens anywhere
  import      Take a run from a file that export wrote
  replay      Fold a run's log again without running anything
  verify      Check that what is stored is what was written, and holds

Write recipes:
  init        Set up a project: configuration, an example recipe and its script
  list        List the recipes known here
  show        Show a recipe's inputs and graph, as text, Mermaid or SVG
  check       Check recipes and explain every problem, with its place and a hint
  convert     Make a recipe of another system's workflow, and say what it lacks
  plan        Draft a recipe in phases from a task, or refine one
  capture     Turn a run into a recipe
  schema      Print the recipe format as JSON Schema, or set up editors

Agents and models:
  chat        Talk with a lead that delegates and runs workflows
  agents      List roles: what each is for, where it comes from, warnings
  models      Show which models can be used; fetch the one that needs no key
  spawn       Delegate one task to a subagent in the background
  wait        Wait for subagents; never ends one
  send        Say something to a subagent; one that is over runs again
  close       Cancel a subagent that runs, or close one for good
  ps          List subagents, newest last
  mcp         Serve this project to an MCP client, or set a client up

This installation:
  serve       Serve the console and the HTTP API of this project
  doctor      Show configuration with origins, and check store, tools and roles
  smoke       Prove that the promises hold here
  gc          Forget runs that ended long ago, with their files
  state       Show, adopt or remove the state of a cloned or copied project
  completion  Print the completion script of a shell

Options of every command:
  --project DIR  The project's folder; default: looked for from here upward.
  --json         One JSON document on stdout.
  --no-color     Plain text, also on a terminal.
  -h, --help     What the command does and takes.

  --version      Print the version.

First steps:
  fanfold init
  fanfold list
  fanfold run research-and-brief -i topic="solid-state batteries" --dry-run
"""
