"""The whole platform under a virtual clock: the services' own loops and books, seeded faults, invariants every tick.

One seed is one run. Real: every loop, decision, ledger and journal of the services, the bus, the consumer, the wire.
Simulated: the clock (``loop``), processes and their deaths (``process``), the network (``network``), the broker
(``broker``, ``client``), gRPC's transport (``rpc``), what rollouts and updates cost (``engine``, ``trainer``).
``faults`` draws what goes wrong, ``books`` and ``invariants`` watch, ``simulation`` runs it all.
"""
