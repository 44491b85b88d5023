"""The paper's evaluation: its figures and tables as settings (TOML), run, cached and drawn.

* `settings/`: one TOML file a figure or table, with the paper's values and our deviations.
* `experiment`: what such a file says; `loading` reads it, strictly. `jobs`: the pieces of work in
  it. `store`: their results, cached by settings. `work`: doing those that are missing; `costs`: how
  long they take. `measurements/`: what is measured that is no training run. `importing`: these
  and drawings by name.
* `drawings/`: from results to plots, tables and facts. `claims`: what the facts say about the
  paper's claims, one by one, by the rules in `verdicts/`.
* `sections`, `details`: the page. `document`: the same in Markdown. `records`: the numbers.
* `reproduce`: all of it, for `diffsketch reproduce`; `showing` its progress, `listing` the list.
"""
