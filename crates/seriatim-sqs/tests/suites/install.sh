#!/usr/bin/env bash
# Installs the clients of SQS and the test suites that tests/sqs/suites runs, below target/. For each
# there is then a program target/sqs/clients/NAME, or NAME.missing, which says why there is none.
# Debian's packages are installed by root alone.
set -uo pipefail
cd "$(dirname "$0")/../../../.."
root=$PWD
clients=$root/target/sqs/clients
mkdir -p "$clients"

# Notes that a client is there: the command that runs it.
there() {
  printf '#!/bin/sh\nexec %s "$@"\n' "$2" >"$clients/$1"
  chmod +x "$clients/$1"
  rm -f "$clients/$1.missing"
}

missing() {
  echo "MISSING: the client $1 cannot be tried here: $2" >&2
  rm -f "$clients/$1"
  echo "$2" >"$clients/$1.missing"
}

# An environment of Python: its name, its packages.
environment() {
  local name=$1 folder=$root/target/python/$1
  shift
  [ "$(cat "$folder/installed" 2>/dev/null)" = "$*" ] && return
  command -v python3 >/dev/null || return
  echo "$ pip install $*"
  python3 -m venv "$folder" && "$folder/bin/pip" install -q "$@" && echo "$*" >"$folder/installed" && return
  rm -rf "$folder"
  return 1
}

# The tests of a project, which only its source package has.
sources() {
  [ -e "$root/target/sqs/$1-$2" ] && return
  "$root/target/python/$1/bin/pip" download -q "$1==$2" --no-binary "$1" --no-deps -d "$root/target/sqs" &&
    tar xzf "$root/target/sqs/$1-$2.tar.gz" -C "$root/target/sqs"
}

no_pip='its packages of Python could not be had'
if environment boto3 boto3 awscli; then
  there boto3 "$root/target/python/boto3/bin/python"
  there aws "$root/target/python/boto3/bin/python -m awscli"
else
  missing boto3 "$no_pip"
  missing aws "$no_pip"
fi
if environment boto3-query 'boto3==1.26.165'; then
  there boto3-query "$root/target/python/boto3-query/bin/python"
else
  missing boto3-query "$no_pip"
fi
if environment moto 'moto==5.2.5' boto3 freezegun pytest requests && sources moto 5.2.5; then
  there moto "$root/target/python/moto/bin/python"
else
  missing moto "$no_pip"
fi
if environment kombu 'celery[sqs]==5.7.0' 'kombu==5.7.0' pytest pytest-xdist && sources kombu 5.7.0; then
  there kombu "$root/target/python/kombu/bin/python"
  there celery "$root/target/python/kombu/bin/python -m celery"
else
  missing kombu "$no_pip"
  missing celery "$no_pip"
fi

# SDKs of other languages, as Debian has them. They speak Query.
debian=()
command -v php >/dev/null && [ -e /usr/share/php/AsyncAws/Sqs ] || debian+=(php-cli php-async-aws-sqs php-symfony-http-client)
command -v go >/dev/null && [ -e /usr/share/gocode/src/github.com/aws/aws-sdk-go ] ||
  debian+=(golang-go golang-github-aws-aws-sdk-go-dev)
command -v ruby >/dev/null && [ -e /usr/lib/ruby/vendor_ruby/aws/sqs.rb ] || debian+=(ruby ruby-aws-sdk)
[ -e /usr/bin/aws ] || debian+=(awscli)
if [ ${#debian[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "$ apt-get install ${debian[*]}"
  apt-get update -qq && apt-get install -y -qq --no-install-recommends "${debian[@]}" >/dev/null
fi
no_apt="its packages of Debian are not installed"
if [ -e /usr/share/php/AsyncAws/Sqs ]; then there php php; else missing php "$no_apt"; fi
if [ -e /usr/share/gocode/src/github.com/aws/aws-sdk-go ]; then
  there go "env GO111MODULE=off GOPATH=/usr/share/gocode GOCACHE='$root/target/sqs/go' go"
else
  missing go "$no_apt"
fi
if [ -e /usr/lib/ruby/vendor_ruby/aws/sqs.rb ]; then there ruby ruby; else missing ruby "$no_apt"; fi
if [ -e /usr/bin/aws ]; then there aws-debian /usr/bin/aws; else missing aws-debian "$no_apt"; fi

# The SDK of JavaScript.
modules=$root/target/sqs/node/node_modules
if [ ! -e "$modules/@aws-sdk/client-sqs" ] && command -v npm >/dev/null; then
  echo "$ npm install @aws-sdk/client-sqs"
  npm install --silent --no-audit --no-fund --prefix "$root/target/sqs/node" '@aws-sdk/client-sqs@3'
fi
if [ -e "$modules/@aws-sdk/client-sqs" ] && command -v node >/dev/null; then
  there node "env NODE_PATH='$modules' node"
else
  missing node 'npm could not install it'
fi
