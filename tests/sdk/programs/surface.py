"""Reports what the SDK consists of: its classes, and the methods and properties of each that are not Python's own."""

import apache_iggy
from scenario import Task, execute, say


def members(kind: type) -> list[str]:
    inherited = {name for base in kind.__mro__[1:] for name in vars(base)}
    own = {name: member for name, member in vars(kind).items() if name not in inherited and not name.startswith("_")}
    # A variant of a choice is a class, or an instance of its own type.
    return [name for name, member in own.items() if not isinstance(member, (type, kind))]


async def main(_: Task) -> None:
    classes = {name: getattr(apache_iggy, name) for name in dir(apache_iggy) if not name.startswith("_")}
    say(surface={name: members(one) for name, one in classes.items() if isinstance(one, type)})


execute(main)
