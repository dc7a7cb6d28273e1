"""Not here: fixtures. What tests run in processes of their own is no module of tests."""

collect_ignore = ["in_two_processes.py", "on_eight_devices.py"]
