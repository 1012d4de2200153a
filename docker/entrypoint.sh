#!/usr/bin/env bash
# The two commands that Spark on Kubernetes expects of an image: `driver ARGUMENTS…` and `executor`. Any other command
# is run unchanged.
#
# Spark passes the parameters of both in the pod's environment, and mounts spark.properties for the driver.
set -euo pipefail

# A standalone cluster's master and workers look for its secret here.
if [ -n "${LAKEHOUSE_SPARK_SECRET_FILE:-}" ]; then
  _SPARK_AUTH_SECRET=$(cat "$LAKEHOUSE_SPARK_SECRET_FILE")
  export _SPARK_AUTH_SECRET
fi

case "${1:-}" in
  driver)
    shift
    # Executors reach the driver at its pod's address, which is also the only one that it listens on.
    set -- spark-submit --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@"
    ;;
  executor)
    options=()
    for ((n = 0; ; n++)); do
      name=SPARK_JAVA_OPT_$n
      [ -n "${!name+set}" ] || break
      options+=("${!name}")
    done
    set -- java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
      -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}$SPARK_HOME/jars/*" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" \
      --executor-id "$SPARK_EXECUTOR_ID" \
      --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" \
      --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
      --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
esac

# tini forwards signals and reaps orphans, even if the container engine provides no init.
exec tini -s -- "$@"
