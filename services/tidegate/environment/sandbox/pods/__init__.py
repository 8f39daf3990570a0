"""The sandbox that runs each program in a pod of its own, under a runtime class such as gVisor or Kata.

``objects`` describes the pods, ``pool`` keeps some of them ready, ``attachment`` talks to the runner in one,
``sandbox`` implements the port. The runner is ``zygote.in_pod``, sent along in the pod's command.
"""
