// Asks a server through a client of openapi-generator, and prints what it answers.
package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"sort"
	"strings"

	fovea "generated/fovea"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func open(path string) *os.File {
	file, err := os.Open(path)
	check(err)
	return file
}

func names(image fovea.ImageAnswer) string {
	if image.Error != nil {
		return image.Error.Code
	}
	found := []string{}
	for _, each := range image.Detections {
		found = append(found, each.ClassName)
	}
	sort.Strings(found)
	return strings.Join(found, " ")
}

func form(mask fovea.Mask) string {
	switch {
	case mask.Counts != nil:
		return "counts"
	case mask.Polygons != nil:
		return "polygons"
	}
	return "png"
}

func main() {
	url, image, broken, drawn := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	configuration := fovea.NewConfiguration()
	configuration.Servers = fovea.ServerConfigurations{{URL: url}}
	client, ctx := fovea.NewAPIClient(configuration), context.Background()

	answer, _, err := client.PredictAPI.Predict(ctx, "digits").Body(open(image)).Conf(0.3).Execute()
	check(err)
	fmt.Println("image:", answer.Task, names(answer.Images[0]))

	files := []*os.File{open(image), open(broken)}
	answer, _, err = client.PredictAPI.PredictForm(ctx, "digits").File(files).Execute()
	check(err)
	fmt.Println("two:", names(answer.Images[0]), names(answer.Images[1]))

	data, err := os.ReadFile(image)
	check(err)
	source := fovea.NewImageSource()
	source.SetData(base64.StdEncoding.EncodeToString(data))
	request := *fovea.NewPredictJson([]fovea.ImageSource{*source})
	answer, _, err = client.PredictAPI.PredictJson(ctx, "digits").PredictJson(request).Execute()
	check(err)
	fmt.Println("json:", names(answer.Images[0]))

	for _, mask := range []string{"rle", "polygon", "png"} {
		answer, _, err = client.PredictAPI.Predict(ctx, "shapes").Body(open(image)).Mask(mask).Execute()
		check(err)
		fmt.Println("mask:", form(*answer.Images[0].Detections[0].Mask))
	}

	picture, _, err := client.PredictAPI.Annotate(ctx, "digits").Body(open(image)).Execute()
	check(err)
	check(os.Rename(picture.Name(), drawn))

	model, _, err := client.ModelsAPI.GetModel(ctx, "digits").Execute()
	check(err)
	fmt.Println("model:", model.GetTask(), len(model.Labels))

	_, response, err := client.PredictAPI.Predict(ctx, "nobody").Body(open(image)).Execute()
	told := err.(*fovea.GenericOpenAPIError).Model().(fovea.ErrorAnswer)
	fmt.Println("error:", response.StatusCode, told.Error.Code)
}
