/* The program that `castor doctor` runs under the Python in question. Each fact is a line: a mark, a key, values, with tabs
 * between. It says things one by one, so that what was said before a crash is known. */
#ifndef CASTOR_LAUNCHER_DOCTOR_PROGRAM_H
#define CASTOR_LAUNCHER_DOCTOR_PROGRAM_H

#define DOCTOR_MARK "castor-doctor"

/* clang-format off */
static const char doctor_program[] =
    "import sys\n"
    "def say(*values):\n"
    "    texts = [' '.join(str(value).split()) for value in values]\n"
    "    sys.stdout.write('\\t'.join(['" DOCTOR_MARK "'] + texts) + '\\n')\n"
    "    sys.stdout.flush()\n"
    "say('python', '%d.%d.%d' % sys.version_info[:3], sys.implementation.name, sys.executable)\n"
    "say('flags', int(sys.flags.isolated), int(sys.flags.ignore_environment))\n"
    "import ctypes, os\n"
    "library = ctypes.CDLL(None)\n"
    "loaded = hasattr(library, 'castor_attach')\n"
    "say('library', int(loaded))\n"
    "say('autoload', os.environ.get('TORCH_DEVICE_BACKEND_AUTOLOAD', ''))\n"
    "try:\n"
    "    import importlib.util\n"
    "    spec = importlib.util.find_spec('castor')\n"
    "    say('package', spec.origin if spec else '')\n"
    "except Exception as error:\n"
    "    say('package', '')\n"
    "say('importing')\n"
    "try:\n"
    "    import torch\n"
    "except BaseException as error:\n"
    "    say('torch-error', type(error).__name__, error)\n"
    "    say('end')\n"
    "    sys.exit(0)\n"
    "say('torch', torch.__version__, torch.version.cuda or '')\n"
    "core = sys.modules.get('castor.agent.core')\n"
    "say('agent', int(hasattr(core, 'attach')), getattr(core, '__file__', ''))\n"
    "distributed = torch.distributed.is_available()\n"
    "say('gloo', int(distributed and torch.distributed.is_gloo_available()))\n"
    "if loaded:\n"
    "    index, layer, name, found = 0, ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()\n"
    "    get = library.castor_hook_get\n"
    "    while get(index, ctypes.byref(layer), ctypes.byref(name), ctypes.byref(found)):\n"
    "        say('hook', layer.value.decode(), name.value.decode(), found.value)\n"
    "        index += 1\n"
    "try:\n"
    "    version = ctypes.c_int()\n"
    "    status = ctypes.CDLL('libcuda.so.1').cuDriverGetVersion(ctypes.byref(version))\n"
    "    say('driver', status, version.value)\n"
    "except (OSError, AttributeError) as error:\n"
    "    say('driver-error', error)\n"
    "if torch.version.cuda:\n"
    "    say('devices', torch.cuda.device_count())\n"
    "    try:\n"
    "        version = torch.cuda.nccl.version() if distributed and torch.distributed.is_nccl_available() else ''\n"
    "        say('nccl', '.'.join(map(str, version)) if isinstance(version, tuple) else version)\n"
    "    except Exception as error:\n"
    "        say('nccl', '', error)\n"
    "say('end')\n";
/* clang-format on */

#endif
