"""What the wheel holds: the files of `make install`, where pip puts them below the environment's own prefix. The launcher finds
the library and the Python part relative to itself there, as in any other prefix. In site-packages is only castor.py, which finds
the Python part, too."""
import os
import re
import shutil
import subprocess

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# For those who compile or link against the library: they have `make install`.
LEFT_OUT = ("include/", "lib/pkgconfig/", "share/licenses/")


def platform_tag(binaries):
    """The oldest manylinux that has every version of glibc's symbols that the binaries ask for; they need no other library but each other."""
    listing = subprocess.run(["readelf", "-W", "--version-info", "--dynamic", *binaries], capture_output=True, text=True, check=True).stdout
    machine = os.uname().machine
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", listing)) - {os.path.basename(binary) for binary in binaries}
    others = {name for name in needed if not re.match(r"(libc|libpthread|libdl|librt|libm|ld-linux.*)\.so\.\d+$", name)}
    minors = [int(minor) for minor in re.findall(r"Name: GLIBC_2\.(\d+)", listing)]
    if others or not minors:
        return f"linux_{machine}"
    return f"manylinux_2_{max(17, *minors)}_{machine}"


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version, build_data):
        folder = os.path.join(self.root, "build", "wheel")
        shutil.rmtree(folder, ignore_errors=True)
        make = os.environ.get("MAKE", "make")
        subprocess.run([make, f"-j{os.cpu_count()}", "install", f"DESTDIR={folder}", "PREFIX=/"], cwd=self.root, check=True)
        binaries = []
        for path, _, names in os.walk(folder):
            for name in names:
                file = os.path.join(path, name)
                target = os.path.relpath(file, folder)
                if os.path.islink(file) or target.startswith(LEFT_OUT):
                    continue  # a wheel holds no links
                if target == "bin/castor":
                    build_data["shared_scripts"][file] = "castor"
                    binaries.append(file)
                    continue
                if name.startswith("libcastor.so."):
                    target = self.soname(file)
                if re.search(r"\.so\b", name):
                    binaries.append(file)
                build_data["shared_data"][file] = target
        build_data["force_include"][os.path.join(self.root, "shims", "installed.py")] = "castor.py"
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + platform_tag(binaries)

    @staticmethod
    def soname(file):
        dynamic = subprocess.run(["readelf", "-W", "--dynamic", file], capture_output=True, text=True, check=True).stdout
        return "lib/" + re.search(r"\(SONAME\).*\[(.*)\]", dynamic)[1]
