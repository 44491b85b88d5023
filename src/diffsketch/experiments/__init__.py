"""The paper's evaluation: its figures and tables as settings (TOML), run, cached and drawn.

* `settings/`: one TOML file a figure or table, with the paper's values and our deviations.
* `experiment`: what such a file says. `jobs`: the pieces of work in it. `store`: their results,
  cached by settings. `measurements/`: what is measured that is no training run.
* `drawings/`: from results to plots, tables and facts. `claims`: what the facts say about the
  paper's claims, one by one.
* `reproduce`: all of it, for `diffsketch reproduce`.
"""
