"""The subcommands of `tollgate`, one file for each word; each exports `app`, which `tollgate.cli` mounts."""
