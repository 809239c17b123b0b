#!/bin/sh
# Build .venv for `make`: "demo" for the demonstration, "dev" for checks and tests.
# Install missing Debian packages if possible (as root, with apt-get); otherwise name them.
set -eu
kind=$1
venv=.venv
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
	echo "shoal needs Python 3.11 or newer; $python is $("$python" --version 2>&1). Name another one: make PYTHON=python3.12 demo" >&2
	exit 1
}

may_install() { command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; }

debian() { # packages that a plain Debian or Ubuntu lacks
	if may_install; then
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@"
	else
		echo "Missing: $*. Install them (Debian: apt-get install $*), then run make again." >&2
		exit 1
	fi
}

"$python" -c 'import ensurepip, venv' 2>/dev/null || debian python3-venv
[ -x "$venv/bin/python" ] && "$venv/bin/python" -c '' 2>/dev/null || "$python" -m venv --clear "$venv"

postgresql() { # without the cluster that Debian's package makes and starts
	! may_install || {
		mkdir -p /etc/postgresql-common/createcluster.d
		echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.d/shoal.conf
	}
	debian postgresql
}

# Tests start a Redis, a PostgreSQL, a Tor network and a browser of their own; without the programs they skip these and say so.
[ "$kind" = demo ] || command -v redis-server >/dev/null || (debian redis-server) || echo "Continuing without redis-server." >&2
[ "$kind" = demo ] || command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || (postgresql) || echo "Continuing without PostgreSQL." >&2
[ "$kind" = demo ] || command -v tor >/dev/null || (debian tor) || echo "Continuing without Tor." >&2
[ "$kind" = demo ] || command -v chromium >/dev/null || (debian chromium fonts-dejavu-core) || echo "Continuing without Chromium." >&2

# One resolver run, pinned by constraints.txt; the extras are those whose code exists and is tested here.
extras="[learn,report,serve,anonymous]"
[ "$kind" = demo ] || extras="[learn,arrow,report,redis,sim,mpc,serve,postgres,anonymous,onnx,dask]"
groups=
[ "$kind" = demo ] || groups=$("$venv/bin/python" - <<'EOF'
import tomllib
groups = tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]
print(*groups["dev"], *groups["oracles"])
EOF
)
# shellcheck disable=SC2086
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".$extras" $groups
