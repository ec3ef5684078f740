"""The fleet in a terminal: reads the JSON API and event stream of a controller, exporter or agent, and draws lines.

`feeds` reads, `fleet_state` keeps, `choosing` sorts and filters, `screens` and `details` draw, and `application` connects
them with a terminal. Only the latter imports the terminal library.
"""
