package main

import (
	"fmt"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	asKubectl                = "kubectl"
	asKubectlServerSide      = "kubectl-server-side"
	asKubectlServerSideForce = "kubectl-server-side-force"
	asHelm                   = "helm"
	asFlux                   = "flux"
	asArgo                   = "argo"
	asArgoServerSide         = "argo-server-side"
)

var toolNames = []string{asKubectl, asKubectlServerSide, asKubectlServerSideForce, asHelm, asFlux, asArgo, asArgoServerSide}

func newTool(given options, config *rest.Config, cluster client.Client) (tool, error) {
	switch given.as {
	case asKubectl:
		return kubectl{namespace: given.namespace}, nil
	case asKubectlServerSide:
		return kubectl{namespace: given.namespace, flags: []string{"--server-side"}}, nil
	case asKubectlServerSideForce:
		return kubectl{namespace: given.namespace, flags: []string{"--server-side", "--force-conflicts"}}, nil
	case asHelm:
		return helm{namespace: given.namespace, release: given.name}, nil
	case asFlux:
		return newFlux(given, cluster), nil
	case asArgo, asArgoServerSide:
		return newArgo(given, config)
	}
	return nil, fmt.Errorf("--as %q is none of %v", given.as, toolNames)
}
