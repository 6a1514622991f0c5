"""Define a part of your own in a script and compare it: Mish, Misra 2019, arXiv:1908.08681."""

import sys

import partwise
from partwise.parts.feed_forward.dense import Activation, F, Ungated

steps = sys.argv[1] if len(sys.argv) > 1 else "300"


@partwise.part("example_mish")
class ExampleMish(Ungated):
    """down(u tanh(softplus(u))), u = up(x). Misra 2019, arXiv:1908.08681."""

    def activation(self) -> Activation:
        return Activation("mish", F.mish)


if __name__ == "__main__":
    comparison = partwise.compare(
        "mingpt",
        "ffn=example_mish",
        data="arithmetic",
        seeds=2,
        name="own-part",
        common=[
            f"train.steps={steps}",
            "d_model=32",
            "n_layers=2",
            "attention.n_heads=4",
            "data.validation=50",
            "data.test=50",
        ],
    )
    print(comparison)
