"""The subcommands of `lakehouse`, one module each.

Every start of `lakehouse` imports all of these modules. What only a command's work needs, such as Spark, is
therefore imported in its functions: help and refused arguments cost a third of a second of CPU time.
"""
