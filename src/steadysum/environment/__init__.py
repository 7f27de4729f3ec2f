"""The environment that a result belongs to: what it is, whether it is still the same, and what is bad in it.

A map of the files, from facts to judgement:

    versions    which version comes first, and which are in a range
    vendor      versions of the NPU vendor's toolkit, driver, firmware and chip; gpu: of a GPU's driver and firmware
    machine     the processor
    determinism switches on equal results, and what they mean here; what values mean is data, in switches.toml
    runtimes    OpenMP and BLAS libraries that are loaded, and those that are there twice
    record      all of it as one document
    lock        the record in a file, and what differs from it
    rules       which versions are known for what, and what to do; the rules themselves are data, in rules.toml
"""

from steadysum.environment.record import components, environment_record, environment_record_by_tools

__all__ = ["components", "environment_record", "environment_record_by_tools"]
