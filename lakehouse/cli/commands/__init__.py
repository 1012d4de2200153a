"""The subcommands of `lakehouse`, one module each.

Every start of `lakehouse` imports all of these modules. Packages that a command needs only for its work, such
as Spark, are therefore imported inside its functions, so help and argument errors take only a third of a
second of CPU time.
"""
