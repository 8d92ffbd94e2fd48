"""A contract of import-linter's: modules import from a package what is listed, and nothing else."""

from __future__ import annotations

from typing import Any

from importlinter import Contract, ContractCheck, fields, output


class AllowedContract(Contract):
    """Holds if sources import from a package allowed modules, and modules below them, alone."""

    source_modules = fields.ListField(subfield=fields.StringField())
    package = fields.StringField()
    allowed_modules = fields.SetField(subfield=fields.StringField())

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        """Return the imports of the package that nothing allows, and the list's unused names."""
        package, allowed = f"{self.package}.", set(self.allowed_modules)
        imports = {
            (importer, imported)
            for source in self.source_modules
            for importer in {source, *graph.find_descendants(source)}
            for imported in graph.find_modules_directly_imported_by(importer)
            if imported.startswith(package)
        }
        used = {(*pair, _nearest(pair[1], allowed)) for pair in imports}
        refused = sorted(f"{one} -> {other}" for one, other, room in used if not room)
        unused = sorted(allowed - {room for _, _, room in used})
        return ContractCheck(
            kept=not refused and not unused, metadata={"refused": refused, "unused": unused}
        )

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each import that is not allowed, and each allowed module that nothing imports."""
        for one in check.metadata["refused"]:
            output.print_error(one)
        for one in check.metadata["unused"]:
            output.print_error(f"{one} is allowed, and nothing imports it")


def _nearest(module: str, allowed: set[str]) -> str:
    """Return the allowed module that is a module or stands above it; "" without one."""
    parts = module.split(".")
    above = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((one for one in above if one in allowed), "")
