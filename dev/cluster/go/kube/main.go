// Command kube is all of Kubernetes in one binary: etcd, the control plane, the node agents and kubectl.
//
// The component is the first argument, or the name that the binary is called by (a link named kubectl is kubectl).
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func command(component string) *cobra.Command {
	switch component {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		return controllermanager.NewControllerManagerCommand()
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	case "kube-proxy":
		return proxy.NewProxyCommand()
	case "kubelet":
		return kubelet.NewKubeletCommand(context.Background())
	case "kubectl":
		return kubectl.NewDefaultKubectlCommand()
	}
	return nil
}

func main() {
	component := filepath.Base(os.Args[0])
	if component == "kube" {
		if len(os.Args) < 2 {
			fmt.Fprintln(os.Stderr, "usage: kube COMPONENT [flags]")
			os.Exit(2)
		}
		// The components read os.Args themselves and expect their own name first.
		os.Args = os.Args[1:]
		component = os.Args[0]
	}
	if component == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	c := command(component)
	if c == nil {
		fmt.Fprintf(os.Stderr, "kube: no component %q\n", component)
		os.Exit(2)
	}
	os.Exit(cli.Run(c))
}
