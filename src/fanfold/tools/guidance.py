"""What a model is told about these tools as a whole."""

INSTRUCTIONS = """\
Fanfold runs teams of agents in this project. Choose by the shape of the work, not by how hard it is:
- run_workflow: repeatable work in several phases, with steps that depend on one another or writers that must
  not collide (audit, fix, verify; the same change in many files). plan_workflow drafts a recipe from a task;
  save_workflow keeps one.
- task, task_batch: one-off side tasks whose answers you need now, alone or side by side.
- spawn_agent, wait_agent, send_input, close_agent, list_agents: side tasks in the background.
Whether a workflow fits is a question of its own, apart from effort and reasoning budget.
Only short reports come back. query_workflow finds the rest; workflow_status shows where a run stands, and
close_agent cancels one.
Try dry_run before a large run. The user is asked before anything starts; you cannot answer for them."""
