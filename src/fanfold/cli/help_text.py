"""What `fanfold --help` ("") and `fanfold NOUN --help` print. Written by `make fix`."""

HELP = {
    "": """\
Fan a job out to a team of AI agents and fold one answer back.

Usage: fanfold COMMAND [OPTIONS] [ARGUMENTS]

Run recipes:
  init     Set up a project with an example recipe and script
  check    Check recipes; report each problem with place and hint
  run      Run a recipe, or forecast the run with --dry-run
  resume   Continue a paused, waiting or interrupted run
  retry    Run the failed steps again; reuse completed ones
  pause    Pause a run and keep its state
  cancel   Cancel a run and its child runs
  approve  Approve a waiting step, or pick one of its choices
  reject   Reject a waiting step
  answer   Answer the question of an ask step or an agent

Follow runs:
  runs     List runs, newest first
  inspect  Show a run: steps, child runs, result and cost
  watch    Watch a run live, whichever process owns it
  logs     Print the log of a run, or follow it with -f
  diff     Show what steps merged, proposed or left unmerged
  undo     Revert what a run or a step merged

Work with agents and models:
  chat    Talk to a lead agent that delegates and runs workflows
  models  List usable models; fetch the one that needs no key
  mcp     Serve this project to an MCP client, or set up a client
  serve   Serve the console and the HTTP API of this project
  doctor  Check configuration, store, programs and roles

More commands; "fanfold recipe --help" describes a group:
  recipe   Write recipes: list, show, check, record, test, plan, convert,
           capture, schema
  history  Study, repeat and move runs: transcript, explain, query, costs,
           compare, whatif, fork, apply, pull, export, import, replay, verify
  agent    Delegate tasks to agents: roles, list, spawn, wait, send, close
  system   Look after this installation: schedule, doctor, smoke, gc, state,
           worker, cluster, completion

Every command takes --project DIR, --json, --no-color and --help.
First steps:
  fanfold init
  fanfold recipe list
  fanfold run research-and-brief -i topic=batteries --dry-run
""",
    "recipe": """\
Write recipes.

Usage: fanfold recipe COMMAND [OPTIONS] [ARGUMENTS]

  list     List the recipes of this project
  show     Show inputs and graph of a recipe (text, Mermaid, SVG)
  check    Check recipes; report each problem with place and hint
  record   Record a run as a test that costs nothing to repeat
  test     Replay recorded runs and report what changed
  plan     Draft a recipe from a task, or refine one
  convert  Convert a workflow of another system; list the losses
  capture  Turn a run into a recipe
  schema   Print the JSON Schema of recipes, or set up editors

"fanfold recipe COMMAND --help" describes one of them.
""",
    "history": """\
Study, repeat and move runs.

Usage: fanfold history COMMAND [OPTIONS] [ARGUMENTS]

  transcript  Show prompts, replies and tool calls of an agent
  explain     Explain why a step waits, was skipped or retried
  query       Search outputs, errors, prompts and transcripts
  costs       Show spending by recipe, model, day or run
  compare     Compare two runs: results, steps, files, cost, time
  whatif      Forecast a recorded run with other concurrency
  fork        Start a new run from a step of an earlier one
  apply       Merge the proposed changes of a step
  pull        Merge the changes of a cluster run into this folder
  export      Export a run as one file that opens in any browser
  import      Import a run from an exported file
  replay      Fold the log of a run again without running anything
  verify      Verify the hash chain and invariants of stored runs

"fanfold history COMMAND --help" describes one of them.
""",
    "agent": """\
Delegate tasks to agents.

Usage: fanfold agent COMMAND [OPTIONS] [ARGUMENTS]

  roles  List roles with their purpose, source and warnings
  list   List subagents, newest last
  spawn  Start a subagent on one task, in the background
  wait   Wait until subagents finish
  send   Send a message to a subagent or a running step
  close  Cancel a running subagent, or close it for good

"fanfold agent COMMAND --help" describes one of them.
""",
    "system": """\
Look after this installation.

Usage: fanfold system COMMAND [OPTIONS] [ARGUMENTS]

  schedule    Add, list and remove schedules and webhooks
  doctor      Check configuration, store, programs and roles
  smoke       Run a self-test
  gc          Delete old runs and their files
  state       Show, adopt or remove state that was copied here
  worker      Take jobs of the cluster: drive runs and execute steps
  cluster     Create tables, show workers and queues, stop a worker
  completion  Print the completion script of a shell

"fanfold system COMMAND --help" describes one of them.
""",
}
