"""The whole platform under a virtual clock: the services' own code, seeded faults, invariants checked at every tick.

One seed is one run. Real: the lifecycle, every loop, decision, ledger and journal of the services, the bus, the
consumer, the wire. Simulated: the clock (``virtual_loop``), processes (``process``), the network (``network``), the
broker (``broker``, ``connection``), gRPC's transport (``rpc``), the time that rollouts and updates take
(``paced_engine``, ``paced_tokens``). ``host`` runs a service, ``faults`` injects failures, ``accounting``, ``oracle``
and ``invariants`` check, ``simulation`` runs a scenario.
"""
