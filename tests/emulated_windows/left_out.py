"""The tests that say nothing about Windows, by file, or by file and function, with the reason."""

FORKS = "forks, their server and its signals, which Windows has none of"
PIPES = "pipes among files, which Windows has none of"
STATUS = "the status of a process that a signal has ended"
MODES = "modes and owners of files"
SIGNALS = "signals of POSIX"
MAPPED = "data that the test itself has open, which nobody can replace"
ASYNCIO = "processes that asyncio starts, which are not emulated"
CALLS = "which calls of the system are made, and in which order"

LEFT_OUT = {
    "comparison/trials/test_local.py": FORKS,
    "comparison/trials/test_spawner.py": FORKS,
    "cli/test_signals.py": SIGNALS,
    "any_code/test_command_execution.py::test_failures_of_the_machine": STATUS,
    "any_code/test_command_execution.py::test_no_command_outlives_a_killed_worker": "the end of a job with its last handle",
    "any_code/test_search_workers.py": "cores, to which Windows pins no process here",
    "any_code/test_several_processes.py::test_one_that_fails_ends_all": STATUS,
    "cli/test_cli.py::test_a_pipe_or_a_device_is_refused_at_once": PIPES,
    "test_files.py::test_a_file_system_without_locks_is_named": "a failure of flock",
    "test_records.py::test_files_that_never_end_are_refused": PIPES,
    "studio/test_lessons.py::test_an_answer_is_checked_by_the_command_of_a_terminal": ASYNCIO,
    "studio/test_models.py": ASYNCIO,
    "studio/test_pages.py::test_without_a_ledger_nothing_is_revealed": ASYNCIO,
    "tokenizers/test_bpe.py::test_a_pipe_is_refused": PIPES,
    "test_checkpoint.py::test_everything_is_synced_before_the_rename": CALLS,
    "test_checkpoint.py::test_a_replacement_that_cannot_be_renamed_restores_the_old_folder": CALLS,
    "data/test_data.py::test_a_file_that_others_can_write_is_not_trusted": MODES,
    "data/test_data.py::test_data_of_another_seed_are_not_used": MAPPED,
    "data/test_data.py::test_data_without_an_identity_are_prepared_again": MAPPED,
    "data/test_data.py::test_damaged_metadata_are_named_once": MAPPED,
    "kernels/test_build.py::test_the_compiler_runs_in_its_own_session": "sessions, which Windows has none of",
    "inspection/test_memory.py::test_the_memory_that_is_available_is_at_most_the_containers": "containers of Linux",
    "test_structure.py::test_the_instrument_stands_alone": FORKS,
    "test_windows.py": "the calls of Windows one by one, on a system that is not emulated",
}

ON_WINDOWS_ITSELF = {
    "any_code/test_function_comparison.py::test_a_deleted_working_folder_is_one_line": "a folder that is in use",
    "any_code/test_result_files.py::test_a_link_out_of_the_folder_is_no_result": "symbolic links",
    "classroom/test_collect.py::test_the_page_escapes_everything": "a file whose name Windows does not allow",
    "cli/test_terminal.py::test_a_terminal_in_the_c_locale_gets_ascii": "a terminal of POSIX",
    "cli/test_train.py::test_a_terminal_marks_the_prompt": "a terminal of POSIX",
    "comparison/ledger/test_entries.py::test_a_read_only_folder_costs_one_line": MODES,
    "data/test_data.py::test_a_pipe_is_refused": PIPES,
    "data/test_data.py::test_a_umask_for_groups_does_not_matter": MODES,
    "formats/test_hostile_folders.py": "files that the test has mapped",
    "formats/test_interrupted_exchange.py": FORKS,
    "formats/test_releases.py": "files that the test has mapped",
    "formats/test_wrapper.py::test_damaged_folders_are_refused": "files that the test has mapped",
    "kernels/test_build.py::test_a_slow_compiler_is_stopped": "a script of sh as a program",
    "studio/test_pages.py::test_a_replication_has_fresh_seeds": "`echo`, which is no program there",
    "studio/test_server.py::test_the_address_is_of_this_machine_alone": "the files of Linux about sockets",
    "test_reliability.py": FORKS,
    "train/distributed/test_processes_command.py::test_the_launcher_says_who_failed": STATUS,
    "train/test_compile.py::test_spaces_in_the_environments_path_are_named": "paths of POSIX",
    "train/distributed/test_data_parallel.py": "processes of torchrun, which nobody has tried there",
}
"""Those that use POSIX themselves: where Windows is emulated they run, since only partwise sees it."""
