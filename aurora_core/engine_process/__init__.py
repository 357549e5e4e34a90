"""Running a serving engine that lives in an environment of its own, for backends that launch one.

    controller --> EngineSupervisor --> ServerProcess --stdin--> guard --> engine and its children
                   restarts, backoff    health, the log          ends them when the pipe closes

Engines that are third-party servers know nothing of the controller's pipe; the guard stands
between, so that nothing is left running however the controller ends. Imports no torch.
"""
