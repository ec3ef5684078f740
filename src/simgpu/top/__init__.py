"""The fleet in a terminal: reads the JSON API and event stream of a controller, exporter or agent, and draws lines.

`feeds` reads, `fleet_state` and `picture` keep, `following` keeps them up to date, `choosing` sorts and filters,
`screens` draws with `tables` and `details`, and `application` is the terminal: it alone imports the terminal library.
"""
